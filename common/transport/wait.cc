#include "transport/wait.h"

#include <poll.h>

#include <vector>

namespace sluice::transport {

void WaitForWork(absl::Span<Transport* const> transports, absl::Duration max) {
  std::vector<pollfd> descriptors;
  for (Transport* transport : transports) {
    if (!transport->PrepareSleep()) return;
    descriptors.push_back({transport->EventFd(), POLLIN, 0});
  }
  // An interrupted or failed poll only wakes the caller early.
  static_cast<void>(poll(descriptors.data(), descriptors.size(),
                         static_cast<int>(absl::ToInt64Milliseconds(max)) + 1));
}

}  // namespace sluice::transport
