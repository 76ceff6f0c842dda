#include "services/cli/flag_range.h"

#include "absl/strings/str_cat.h"

namespace sluice::cli {

absl::Status CheckRange(absl::string_view flag, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, "; it must be between ", least, " and ", most));
}

}  // namespace sluice::cli
