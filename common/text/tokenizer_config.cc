#include "text/tokenizer_config.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/json_util.h"
#include "text/vocabulary_builder.h"

namespace sluice::text {
namespace {

namespace json = boost::json;

absl::Status ReadAddedTokensDecoder(const json::object& config, TokenizerSpec* spec) {
  const json::value* decoder = FindValue(config, "added_tokens_decoder");
  if (decoder == nullptr) return absl::OkStatus();
  if (!decoder->is_object()) {
    return absl::InvalidArgumentError("tokenizer_config.json: added_tokens_decoder is no object");
  }
  absl::flat_hash_map<TokenId, std::string> known;
  for (const AddedToken& token : spec->added) known.emplace(token.id, token.content);
  for (const auto& entry : decoder->get_object()) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(View(entry.key()), &id)) id = -1;
    SLUICE_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(entry.value(), id));
    const auto [it, inserted] = known.emplace(token.id, token.content);
    if (!inserted && it->second != token.content) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer_config.json: token ", id, " differs from tokenizer.json"));
    }
    if (inserted) spec->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// The id of `bos_token` and its like: a string, an object with "content", or null.
absl::StatusOr<std::optional<TokenId>> ReadRole(const json::object& config, absl::string_view role,
                                                const TokenizerSpec& spec) {
  const json::value* value = FindValue(config, role);
  if (value == nullptr) return std::optional<TokenId>();
  std::string content;
  if (value->is_object()) {
    SLUICE_ASSIGN_OR_RETURN(content, GetString(value->get_object(), "content", ""));
  } else {
    SLUICE_ASSIGN_OR_RETURN(content, GetString(config, role, ""));
  }
  SLUICE_ASSIGN_OR_RETURN(const TokenId id, ResolveToken(spec, role, content));
  return std::optional<TokenId>(id);
}

}  // namespace

absl::StatusOr<AddedToken> ReadAddedToken(const json::value& value, int64_t id) {
  if (!value.is_object() || id < 0 || id >= static_cast<int64_t>(kVocabularyMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: added token with id ", id, " is malformed"));
  }
  const json::object& object = value.get_object();
  AddedToken token;
  token.id = static_cast<TokenId>(id);
  SLUICE_ASSIGN_OR_RETURN(token.content, GetString(object, "content", ""));
  SLUICE_ASSIGN_OR_RETURN(token.special, GetBool(object, "special", false));
  SLUICE_ASSIGN_OR_RETURN(token.lstrip, GetBool(object, "lstrip", false));
  SLUICE_ASSIGN_OR_RETURN(token.rstrip, GetBool(object, "rstrip", false));
  SLUICE_ASSIGN_OR_RETURN(const bool single_word, GetBool(object, "single_word", false));
  if (token.content.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: added token ", id, " has no text"));
  }
  if (single_word) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: added token '", token.content,
                                                   "' has single_word, which is not supported"));
  }
  return token;
}

absl::Status ApplyTokenizerConfig(const json::object& config, TokenizerSpec* spec) {
  SLUICE_RETURN_IF_ERROR(ReadAddedTokensDecoder(config, spec));
  SLUICE_ASSIGN_OR_RETURN(const auto bos, ReadRole(config, "bos_token", *spec));
  SLUICE_ASSIGN_OR_RETURN(const auto eos, ReadRole(config, "eos_token", *spec));
  SLUICE_ASSIGN_OR_RETURN(const auto pad, ReadRole(config, "pad_token", *spec));
  if (bos.has_value()) spec->bos = bos;
  if (pad.has_value()) spec->pad = pad;
  if (eos.has_value() && std::find(spec->eos.begin(), spec->eos.end(), *eos) == spec->eos.end()) {
    spec->eos.push_back(*eos);
  }
  SLUICE_ASSIGN_OR_RETURN(const bool add_bos, GetBool(config, "add_bos_token", spec->add_bos));
  spec->add_bos = add_bos && spec->bos.has_value();
  return absl::OkStatus();
}

}  // namespace sluice::text
