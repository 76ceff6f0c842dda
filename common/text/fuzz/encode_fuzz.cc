// Any text through encode and decode: refused exactly if it is not UTF-8, otherwise lossless,
// trusted or not.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/split_pattern.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// Bytes, a few merges, two markers: every path of the encoder without a vocabulary file.
std::unique_ptr<const Tokenizer> MakeTokenizer(std::vector<std::string> splits, bool whole) {
  TokenizerSpec spec = ByteTokenizerSpec();
  spec.added.push_back({257, "<|im|>", false});
  spec.vocabulary.resize(258);
  const char* pairs[] = {"aa", "aaaa", "  ", "    ", "th", "the", " the", "\xC3\xA4"};
  for (const char* text : pairs) {
    const std::string token = text;
    const auto find = [&](const std::string& part) {
      TokenId id = -1;
      for (size_t i = 0; i < spec.vocabulary.size(); ++i) {
        if (spec.vocabulary[i] == part) id = static_cast<TokenId>(i);
      }
      return id;
    };
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const TokenId left = find(token.substr(0, cut)), right = find(token.substr(cut));
      if (left < 0 || right < 0) continue;
      const auto id = static_cast<TokenId>(spec.vocabulary.size());
      spec.merges.push_back({left, right, id, static_cast<int32_t>(spec.merges.size())});
      break;
    }
    spec.vocabulary.push_back(token);
  }
  spec.splits = std::move(splits);
  spec.ignore_merges = whole;
  spec.run_characters_max = whole ? 25 : 0;
  auto tokenizer = Tokenizer::Create(std::move(spec));
  SLUICE_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

void RoundTrip(const Tokenizer& tokenizer, absl::string_view text) {
  for (const bool trusted : {false, true}) {
    const auto ids = tokenizer.Encode(text, trusted);
    SLUICE_CHECK(ids.ok() == IsValidUtf8(text));
    if (!ids.ok()) continue;
    SLUICE_CHECK(Detokenize(tokenizer, *ids, {.skip_special_tokens = false}) == text);
  }
}

void RunOne(const uint8_t* data, size_t size) {
  static const auto& gpt2 = *MakeTokenizer({EachDigitSplit(), Gpt2Split()}, false).release();
  static const auto& llama = *MakeTokenizer({Llama3Split()}, false).release();
  static const auto& kimi = *MakeTokenizer({KimiSplit()}, true).release();
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  RoundTrip(gpt2, text);
  RoundTrip(llama, text);
  RoundTrip(kimi, text);
}

}  // namespace
}  // namespace sluice::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::text::RunOne(data, size);
  return 0;
}
