// What a tokenizer is made of, as plain data, and the readers that fill it from the published file
// formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::text {

using TokenId = int32_t;

// Bounds on what a model file may ask for.
inline constexpr size_t kVocabularyMax = size_t{1} << 21;
inline constexpr size_t kMergesMax = size_t{1} << 22;
inline constexpr size_t kAddedTokensMax = 65536;
inline constexpr size_t kAddedTokenBytesMax = 512;
inline constexpr size_t kTokenizerFileBytesMax = size_t{64} << 20;

// A token that is cut out of trusted text before anything else happens.
struct AddedToken {
  TokenId id = 0;
  std::string content;  // As it appears in text, not byte-level encoded.
  bool special =
      false;  // Dropped by skip_special_tokens; markers that carry meaning (<think>) are not.
  bool lstrip = false;  // The match swallows white space to its left.
  bool rstrip = false;  // The match swallows white space to its right.
};

// `left` followed by `right` becomes `result`; the lowest rank is applied first, of equal ranks the
// leftmost.
struct Merge {
  TokenId left = 0;
  TokenId right = 0;
  TokenId result = 0;
  int32_t rank = 0;
};

// Byte-level BPE. Ids index `vocabulary`; a hole or an added token has an empty string there.
struct TokenizerSpec {
  std::vector<std::string> vocabulary;  // Raw bytes of each token.
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  // PCRE2 patterns. Each cuts every piece of the previous step into its matches and what lies
  // between them.
  std::vector<std::string> splits;
  bool nfc = false;            // Text is brought to Unicode NFC first.
  bool ignore_merges = false;  // A piece that is a token as a whole is that token.
  // Runs of (non-)spaces longer than this are cut before `splits`; 0: never. In characters.
  size_t run_characters_max = 0;
  std::optional<TokenId> bos = std::nullopt;
  std::optional<TokenId> pad = std::nullopt;
  std::optional<TokenId> unknown = std::nullopt;  // Stands for a byte that the vocabulary lacks.
  std::vector<TokenId> eos;                       // Any of them ends a generation.
  bool add_bos = false;  // A raw prompt starts with `bos`. Templates write their own.
};

// Reads tokenizer.json and, unless empty, tokenizer_config.json (bos_token, eos_token, pad_token,
// add_bos_token). Returns INVALID_ARGUMENT that names the node for every kind of node, flag or
// pattern that is not supported.
absl::StatusOr<TokenizerSpec> SpecFromTokenizerJson(absl::string_view tokenizer_json,
                                                    absl::string_view tokenizer_config_json);

// The `tokenizer.ggml.*` metadata of a GGUF file. The spans need to live only during the call.
struct GgufVocabulary {
  absl::string_view model;  // "gpt2" is the only supported value.
  absl::string_view pre;    // "smollm", "llama-bpe", "qwen2", "glm4", "gpt-2", ...
  absl::Span<const std::string> tokens;
  absl::Span<const int32_t> token_types;  // Empty, or one for each token.
  absl::Span<const std::string> merges;   // "left right"
  std::optional<TokenId> bos = std::nullopt;
  std::optional<TokenId> pad = std::nullopt;
  std::optional<TokenId> unknown = std::nullopt;
  std::vector<TokenId> eos;  // eos_token_id and, where present, eot_token_id and eom_token_id.
  std::optional<bool> add_bos = std::nullopt;  // Absent: what `pre` implies.
};
absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufVocabulary& gguf);

// Kimi's tiktoken.model ("base64 rank" lines) and the tokenizer_config.json beside it.
absl::StatusOr<TokenizerSpec> SpecFromTiktoken(absl::string_view tiktoken_model,
                                               absl::string_view tokenizer_config_json);

// One token per byte (ids 0..255) and <|eos|> = 256: the vocabulary of the toy model.
inline constexpr TokenId kByteTokenizerEos = 256;
inline constexpr int kByteTokenizerVocabulary = 257;
TokenizerSpec ByteTokenizerSpec();

}  // namespace sluice::text
