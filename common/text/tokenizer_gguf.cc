#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/split_pattern.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary_builder.h"

namespace sluice::text {
namespace {

constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;
constexpr int32_t kUnused = 5;

// What the name in tokenizer.ggml.pre stands for.
struct PreTokenizer {
  absl::string_view name;
  std::string (*first)();
  std::string (*second)();
  bool nfc;
  bool ignore_merges;
  bool add_bos;
};
constexpr std::array<PreTokenizer, 9> kPreTokenizers = {{
    {"gpt-2", Gpt2Split, nullptr, false, false, false},
    {"smollm", EachDigitSplit, Gpt2Split, false, false, false},
    {"starcoder", EachDigitSplit, Gpt2Split, false, false, false},
    {"llama-bpe", Llama3Split, nullptr, false, true, true},
    {"llama3", Llama3Split, nullptr, false, true, true},
    {"llama-v3", Llama3Split, nullptr, false, true, true},
    {"qwen2", Qwen2Split, nullptr, true, false, false},
    {"glm4", Llama3Split, nullptr, false, true, false},
    {"chatglm-bpe", Llama3Split, nullptr, false, true, false},
}};

absl::StatusOr<const PreTokenizer*> FindPreTokenizer(absl::string_view name) {
  std::string supported;
  for (const PreTokenizer& pre : kPreTokenizers) {
    if (pre.name == name) return &pre;
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", pre.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("GGUF tokenizer.ggml.pre is '", name, "'; supported are ", supported));
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufVocabulary& gguf) {
  if (gguf.model != "gpt2") {
    return absl::InvalidArgumentError(absl::StrCat("GGUF tokenizer.ggml.model is '", gguf.model,
                                                   "'; supported is 'gpt2' (byte-level BPE)"));
  }
  SLUICE_ASSIGN_OR_RETURN(const PreTokenizer* pre, FindPreTokenizer(gguf.pre));
  if (!gguf.token_types.empty() && gguf.token_types.size() != gguf.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("GGUF has ", gguf.tokens.size(), " tokens but ",
                                                   gguf.token_types.size(), " token types"));
  }
  TokenizerSpec spec;
  VocabularyBuilder builder(&spec);
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const int32_t type = gguf.token_types.empty() ? 0 : gguf.token_types[i];
    if (type == kUnused) continue;
    const std::string& token = gguf.tokens[i];
    const TokenId id = static_cast<TokenId>(i);
    if (type == kControl || type == kUserDefined || type == kUnknown) {
      if (!token.empty()) spec.added.push_back({id, token, type != kUserDefined});
      continue;
    }
    SLUICE_RETURN_IF_ERROR(builder.AddToken(token, id));
  }
  for (const std::string& merge : gguf.merges) {
    SLUICE_RETURN_IF_ERROR(builder.AddMergeLine(merge));
  }
  // Ids at the end may be unused; they still count.
  if (spec.vocabulary.size() < gguf.tokens.size()) spec.vocabulary.resize(gguf.tokens.size());
  spec.splits.push_back(pre->first());
  if (pre->second != nullptr) spec.splits.push_back(pre->second());
  spec.nfc = pre->nfc;
  spec.ignore_merges = pre->ignore_merges;
  spec.bos = gguf.bos;
  spec.pad = gguf.pad;
  spec.unknown = gguf.unknown;
  spec.eos = gguf.eos;
  spec.add_bos = gguf.add_bos.value_or(pre->add_bos) && gguf.bos.has_value();
  return spec;
}

TokenizerSpec ByteTokenizerSpec() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    spec.vocabulary.emplace_back(1, static_cast<char>(byte));
  }
  spec.added.push_back({kByteTokenizerEos, "<|eos|>", /*special=*/true});
  spec.eos = {kByteTokenizerEos};
  return spec;
}

}  // namespace sluice::text
