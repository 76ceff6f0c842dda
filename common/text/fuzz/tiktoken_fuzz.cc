// Any two texts are read as tiktoken.model and tokenizer_config.json; what they give must encode
// and decode.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  // The first NUL separates the two files.
  const size_t cut = input.find('\0');
  const absl::string_view config =
      cut == absl::string_view::npos ? absl::string_view("{}") : input.substr(cut + 1);
  auto spec = sluice::text::SpecFromTiktoken(input.substr(0, cut), config);
  if (!spec.ok()) return 0;
  const auto tokenizer = sluice::text::Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  for (const bool trusted : {false, true}) {
    const auto ids = (*tokenizer)->Encode("Hello, w\xc3\xb6rld! <|im_end|> 12345\n", trusted);
    if (!ids.ok()) continue;  // a byte that the vocabulary lacks
    for (const auto id : *ids) SLUICE_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    sluice::text::Detokenize(**tokenizer, *ids, {.skip_special_tokens = false});
  }
  return 0;
}
