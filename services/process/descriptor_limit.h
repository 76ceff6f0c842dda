// How many files and connections a process may have open.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace sluice::services {

struct DescriptorLimit {
  uint64_t before = 0;
  uint64_t now = 0;
};

// Raises the soft RLIMIT_NOFILE of this process to its hard limit: the usual 1024 is kept for
// programs that use select(), and fewer connections than that would put probes in the dark. Errors:
// what the kernel says; the limit is then as it was.
absl::StatusOr<DescriptorLimit> RaiseDescriptorLimit();

}  // namespace sluice::services
