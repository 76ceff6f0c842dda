#include "model/tokenizer_inputs.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/mapped_file.h"
#include "model/model_files.h"

namespace sluice::model {
namespace {

using formats::GgufFile;
using formats::JsonValue;

constexpr uint64_t kMaxFileBytes = 64u << 20;

// The text of a file of `folder`; empty when there is none.
absl::StatusOr<std::string> ReadOptional(absl::string_view folder, absl::string_view name) {
  auto text = formats::ReadTextFile(absl::StrCat(folder, "/", name), kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

// chat_template of tokenizer_config.json: a string, or a list of named ones of which "default"
// counts.
absl::StatusOr<std::string> TemplateOf(const JsonValue& config) {
  const JsonValue* value = config.Find("chat_template");
  if (value == nullptr || value->is_null()) return std::string();
  if (value->is_array()) {
    for (const JsonValue& named : value->array()) {
      const auto name = named.GetString("name");
      if (!name.ok() || *name != "default") continue;
      SLUICE_ASSIGN_OR_RETURN(const absl::string_view text, named.GetString("template"));
      return std::string(text);
    }
    return std::string();
  }
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view text, config.GetString("chat_template"));
  return std::string(text);
}

absl::StatusOr<TokenizerInputs> FromFolder(absl::string_view folder) {
  TokenizerInputs inputs;
  SLUICE_ASSIGN_OR_RETURN(inputs.tokenizer_json, ReadOptional(folder, "tokenizer.json"));
  SLUICE_ASSIGN_OR_RETURN(inputs.tokenizer_config_json,
                          ReadOptional(folder, "tokenizer_config.json"));
  SLUICE_ASSIGN_OR_RETURN(inputs.chat_template, ReadOptional(folder, "chat_template.jinja"));
  if (!inputs.tokenizer_json.empty()) {
    inputs.kind = TokenizerInputs::Kind::kTokenizerJson;
  } else {
    SLUICE_ASSIGN_OR_RETURN(inputs.tiktoken_model, ReadOptional(folder, "tiktoken.model"));
    if (!inputs.tiktoken_model.empty()) inputs.kind = TokenizerInputs::Kind::kTiktoken;
  }
  if (inputs.chat_template.empty() && !inputs.tokenizer_config_json.empty()) {
    const std::string path = absl::StrCat(folder, "/tokenizer_config.json");
    SLUICE_ASSIGN_OR_RETURN(const JsonValue config,
                            formats::ParseJson(inputs.tokenizer_config_json, path));
    auto text = TemplateOf(config);
    if (!text.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", text.status().message()));
    }
    inputs.chat_template = *std::move(text);
  }
  return inputs;
}

absl::StatusOr<std::vector<std::string>> Strings(const GgufFile& file, absl::string_view key) {
  SLUICE_ASSIGN_OR_RETURN(const auto views, file.GetStringArray(key));
  std::vector<std::string> strings;
  strings.reserve(views.size());
  for (absl::string_view view : views) strings.emplace_back(view);
  return strings;
}

// The token id at `key`, or nothing when the key is missing.
absl::Status ReadId(const GgufFile& file, absl::string_view key, std::optional<int32_t>* id) {
  if (!file.Has(key)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const uint32_t value, file.GetU32(key));
  if (value > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.source(), ": '", key, "' is ", value, ", no token id"));
  }
  *id = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::Status ReadIds(const GgufFile& file, TokenizerInputs::Gguf* gguf) {
  SLUICE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.bos_token_id", &gguf->bos));
  SLUICE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.padding_token_id", &gguf->pad));
  SLUICE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.unknown_token_id", &gguf->unknown));
  for (absl::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                "tokenizer.ggml.eom_token_id"}) {
    std::optional<int32_t> id;
    SLUICE_RETURN_IF_ERROR(ReadId(file, key, &id));
    if (id.has_value()) gguf->eos.push_back(*id);
  }
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    SLUICE_ASSIGN_OR_RETURN(gguf->add_bos, file.GetBool("tokenizer.ggml.add_bos_token"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerInputs> FromGguf(const GgufFile& file) {
  TokenizerInputs inputs;
  if (file.Has("tokenizer.chat_template")) {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view text,
                            file.GetString("tokenizer.chat_template"));
    inputs.chat_template = std::string(text);
  }
  if (!file.Has("tokenizer.ggml.model")) return inputs;
  inputs.kind = TokenizerInputs::Kind::kGguf;
  TokenizerInputs::Gguf& gguf = inputs.gguf;
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view model, file.GetString("tokenizer.ggml.model"));
  gguf.model = std::string(model);
  if (file.Has("tokenizer.ggml.pre")) {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view pre, file.GetString("tokenizer.ggml.pre"));
    gguf.pre = std::string(pre);
  }
  SLUICE_ASSIGN_OR_RETURN(gguf.tokens, Strings(file, "tokenizer.ggml.tokens"));
  if (file.Has("tokenizer.ggml.merges")) {
    SLUICE_ASSIGN_OR_RETURN(gguf.merges, Strings(file, "tokenizer.ggml.merges"));
  }
  if (file.Has("tokenizer.ggml.token_type")) {
    SLUICE_ASSIGN_OR_RETURN(const auto types, file.GetIntArray("tokenizer.ggml.token_type"));
    for (int64_t type : types) {
      // Types are small; anything else becomes 0, which is no type.
      gguf.token_types.push_back(type >= 0 && type < 128 ? static_cast<int32_t>(type) : 0);
    }
  }
  SLUICE_RETURN_IF_ERROR(ReadIds(file, &gguf));
  return inputs;
}

}  // namespace

absl::StatusOr<TokenizerInputs> ReadTokenizerInputs(absl::string_view path) {
  if (!IsGgufPath(path)) return FromFolder(path);
  SLUICE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  return FromGguf(file);
}

}  // namespace sluice::model
