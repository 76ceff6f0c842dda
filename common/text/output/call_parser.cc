#include "text/output/call_parser.h"

#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace sluice::text {

std::string CallId(absl::string_view seed, uint32_t index) {
  const std::string text = absl::StrCat(seed, "/", index);
  const uint64_t high = Hash64(text.data(), text.size());
  const uint64_t low = Hash64(&high, sizeof high);
  return absl::StrCat("call_", absl::Hex(high, absl::kZeroPad16),
                      absl::Hex(low >> 32, absl::kZeroPad8));
}

}  // namespace sluice::text
