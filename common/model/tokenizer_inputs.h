// What a model's files say about its tokenizer and chat template, as plain data: common/text gives
// it meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::model {

struct TokenizerInputs {
  enum class Kind {
    kNone,           // the files hold no tokenizer
    kGguf,           // the fields of `gguf`
    kTokenizerJson,  // tokenizer_json, tokenizer_config_json
    kTiktoken,       // tiktoken_model, tokenizer_config_json
  };
  // tokenizer.ggml.* of a GGUF file.
  struct Gguf {
    std::string model;
    std::string pre;
    std::vector<std::string> tokens;
    std::vector<int32_t> token_types;  // empty or one per token
    std::vector<std::string> merges;
    std::optional<int32_t> bos;
    std::optional<int32_t> pad;
    std::optional<int32_t> unknown;
    std::vector<int32_t> eos;  // eos, eot and eom where present
    std::optional<bool> add_bos;
  };

  Kind kind = Kind::kNone;
  Gguf gguf;
  std::string tokenizer_json;
  std::string tokenizer_config_json;  // empty when there is none
  std::string tiktoken_model;
  std::string chat_template;  // empty when there is none
};

// Reads the tokenizer files of the model at `path` (a folder or a .gguf file); no tensors are
// needed. A model without a tokenizer is no error. Files over 64 MiB and malformed metadata are
// INVALID_ARGUMENT.
absl::StatusOr<TokenizerInputs> ReadTokenizerInputs(absl::string_view path);

}  // namespace sluice::model
