#include "transport/loopback_backend.h"

#include <utility>

namespace sluice::transport {

Backend LoopbackBackend() {
  const auto create =
      [](const TransportOptions& options) -> absl::StatusOr<std::unique_ptr<Transport>> {
    if (options.loopback == nullptr) {
      return absl::UnavailableError("it joins workers of one process only; use it with role both");
    }
    return options.loopback->CreateTransport();
  };
  return {"loopback", "workers of one process", create};
}

}  // namespace sluice::transport
