// Makes the transport that a worker is configured to use.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/loopback.h"
#include "transport/transport.h"

namespace sluice::transport {

struct TransportOptions {
  // In order of preference: "ucx-shm", "ucx-rdma", "ucx-tcp", "loopback".
  std::vector<std::string> backends = {"ucx-shm"};
  // Network devices that UCX may use and listen on, comma-separated.
  std::string net_devices = "lo";
  // Everybody who can reach the devices is trusted; without it "ucx-tcp" and "ucx-rdma" are
  // refused.
  bool trusted_network = false;
  absl::Duration keepalive = absl::Seconds(1);
  Limits limits;
  // Needed by "loopback"; must outlive the transport. Its own limits apply.
  LoopbackNetwork* loopback = nullptr;
};

struct Backend {
  std::string name;
  std::string description;
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const TransportOptions&)> create;
};

// What this program was built with.
std::vector<Backend> BuiltBackends();

// The first of `options.backends` that this host can give; why earlier ones could not is logged.
// UCX sets an environment variable, so call it before other threads run.
// Errors: INVALID_ARGUMENT for an unknown name or an empty list, UNAVAILABLE when none works, with
// the reason of each.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportOptions& options);

}  // namespace sluice::transport
