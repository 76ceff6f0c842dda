// Unicode normalisation form C.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::text {

// More combining marks in a row occur in no language; sorting them costs the square of their
// number.
inline constexpr size_t kCombiningRunMax = 1024;

// `text` must be valid UTF-8. INVALID_ARGUMENT for more than kCombiningRunMax combining marks in a
// row.
absl::StatusOr<std::string> ToNfc(absl::string_view text);

}  // namespace sluice::text
