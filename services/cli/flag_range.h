// A number on the command line has bounds.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::cli {

// Errors: INVALID_ARGUMENT naming `flag`, `value` and the bounds, unless least <= value <= most.
absl::Status CheckRange(absl::string_view flag, uint64_t value, uint64_t least, uint64_t most);

}  // namespace sluice::cli
