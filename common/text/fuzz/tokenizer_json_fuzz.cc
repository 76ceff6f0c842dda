// Any bytes as tokenizer.json: an error or a tokenizer that encodes and decodes.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sluice::text {
namespace {

void RunOne(const uint8_t* data, size_t size) {
  // The part behind the first NUL is tokenizer_config.json.
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  const absl::string_view config = cut == absl::string_view::npos ? "" : input.substr(cut + 1);
  auto spec = SpecFromTokenizerJson(input.substr(0, cut), config);
  if (!spec.ok()) return;
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return;
  const auto ids = (*tokenizer)->Encode("Hello  world 12\n<|x|>", /*trusted=*/true);
  if (ids.ok()) Detokenize(**tokenizer, *ids);
}

}  // namespace
}  // namespace sluice::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::text::RunOne(data, size);
  return 0;
}
