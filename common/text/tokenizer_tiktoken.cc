#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "text/json_util.h"
#include "text/split_pattern.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_spec.h"

namespace sluice::text {
namespace {

constexpr size_t kReservedTokens = 256;      // Ids behind the ranks; unnamed ones are reserved.
constexpr size_t kRunCharactersMax = 25000;  // The reference cuts longer runs.

absl::Status ReadRanks(absl::string_view file, TokenizerSpec* spec) {
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(file, '\n', absl::SkipEmpty())) {
    ++number;
    const size_t space = line.find(' ');
    std::string token;
    int32_t rank = -1;
    if (space == absl::string_view::npos || !absl::Base64Unescape(line.substr(0, space), &token) ||
        token.empty() || !absl::SimpleAtoi(line.substr(space + 1), &rank) || rank < 0 ||
        static_cast<size_t>(rank) >= kVocabularyMax - kReservedTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("tiktoken.model line ", number, " is not 'base64 rank'"));
    }
    const size_t id = static_cast<size_t>(rank);
    if (spec->vocabulary.size() <= id) spec->vocabulary.resize(id + 1);
    if (!spec->vocabulary[id].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("tiktoken.model lists rank ", id, " twice"));
    }
    spec->vocabulary[id] = std::move(token);
  }
  return absl::OkStatus();
}

// tiktoken joins the adjacent pair whose concatenation has the lowest rank: every way to cut a
// token in two is a merge.
absl::Status DeriveMerges(TokenizerSpec* spec) {
  absl::flat_hash_map<absl::string_view, TokenId> ids;
  for (size_t i = 0; i < spec->vocabulary.size(); ++i) {
    const std::string& token = spec->vocabulary[i];
    if (!token.empty() && !ids.emplace(token, static_cast<TokenId>(i)).second) {
      return absl::InvalidArgumentError(absl::StrCat("tiktoken.model: token ", i, " repeats one"));
    }
  }
  for (size_t i = 0; i < spec->vocabulary.size(); ++i) {
    const absl::string_view token = spec->vocabulary[i];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right == ids.end()) continue;
      if (spec->merges.size() >= kMergesMax) {
        return absl::InvalidArgumentError("tiktoken.model: too many ways to build its tokens");
      }
      const auto id = static_cast<TokenId>(i);
      spec->merges.push_back({left->second, right->second, id, /*rank=*/id});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromTiktoken(absl::string_view tiktoken_model,
                                               absl::string_view tokenizer_config_json) {
  if (tiktoken_model.size() > kTokenizerFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("tiktoken.model has ", tiktoken_model.size(),
                                                   " bytes; at most ", kTokenizerFileBytesMax));
  }
  TokenizerSpec spec;
  SLUICE_RETURN_IF_ERROR(ReadRanks(tiktoken_model, &spec));
  SLUICE_RETURN_IF_ERROR(DeriveMerges(&spec));
  const size_t ranks = spec.vocabulary.size();
  SLUICE_ASSIGN_OR_RETURN(
      const boost::json::object config,
      ParseJsonObject(tokenizer_config_json, "tokenizer_config.json", kTokenizerFileBytesMax));
  SLUICE_RETURN_IF_ERROR(ApplyTokenizerConfig(config, &spec));
  absl::flat_hash_set<TokenId> named;
  for (const AddedToken& token : spec.added) named.insert(token.id);
  for (size_t i = ranks; i < ranks + kReservedTokens; ++i) {
    const auto id = static_cast<TokenId>(i);
    if (named.contains(id)) continue;
    spec.added.push_back({id, absl::StrCat("<|reserved_token_", id, "|>"), /*special=*/true});
  }
  spec.splits = {KimiSplit()};
  spec.ignore_merges = true;
  spec.run_characters_max = kRunCharactersMax;
  return spec;
}

}  // namespace sluice::text
