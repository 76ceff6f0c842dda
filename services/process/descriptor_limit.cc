#include "services/process/descriptor_limit.h"

#include <sys/resource.h>

#include <cerrno>

namespace sluice::services {

absl::StatusOr<DescriptorLimit> RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return absl::ErrnoToStatus(errno, "cannot read RLIMIT_NOFILE");
  const uint64_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (before < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::ErrnoToStatus(errno, "cannot raise RLIMIT_NOFILE");
  }
  return DescriptorLimit{before, limit.rlim_cur};
}

}  // namespace sluice::services
