// Waiting for transports outside a loop: measurements and tests.
#pragma once

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/transport.h"

namespace sluice::transport {

// Sleeps until one of the transports may have work, at most `max`. They need event fds.
void WaitForWork(absl::Span<Transport* const> transports, absl::Duration max);

}  // namespace sluice::transport
