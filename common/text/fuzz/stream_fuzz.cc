// Any bytes as a token stream: the detokenizer emits valid UTF-8 only, and neither it nor the stop
// matcher depends on how the stream was cut.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

void RunOne(const uint8_t* data, size_t size) {
  static const Tokenizer& tokenizer = *Tokenizer::Create(ByteTokenizerSpec())->release();
  if (size < 2) return;
  // First byte: length of a stop string taken from the input.
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> stops;
  const size_t stop_bytes = 1 + data[0] % 8;
  if (size > 1 + stop_bytes && IsValidUtf8(input.substr(1, stop_bytes))) {
    stops.emplace_back(input.substr(1, stop_bytes));
  }
  auto stepwise = StopMatcher::Create(stops);
  auto whole = StopMatcher::Create(stops);
  SLUICE_CHECK(stepwise.ok() && whole.ok());

  StreamDetokenizer stream(tokenizer);
  std::string text, emitted;
  for (size_t i = 1; i < size; ++i) {
    std::string step;
    stream.Append(data[i], &step);
    SLUICE_CHECK(IsValidUtf8(step) && stream.pending_bytes() <= 3);
    text += step;
    std::string out;
    stepwise->Append(step, &out);
    SLUICE_CHECK(IsValidUtf8(out));
    emitted += out;
  }
  std::string step;
  stream.Flush(&step);
  text += step;
  stepwise->Append(step, &emitted);
  stepwise->Flush(&emitted);
  std::string at_once;
  whole->Append(text, &at_once);
  whole->Flush(&at_once);
  SLUICE_CHECK(at_once == emitted);
  if (IsValidUtf8(input.substr(1))) SLUICE_CHECK(text == input.substr(1));
}

}  // namespace
}  // namespace sluice::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::text::RunOne(data, size);
  return 0;
}
