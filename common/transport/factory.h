// Makes the transport that a worker is configured to use.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/certificates/service_identity.h"
#include "transport/loopback.h"
#include "transport/transport.h"

namespace sluice::transport {

struct TransportOptions {
  // In order of preference: "ucx-shm", "ucx-rdma", "ucx-tcp", "tls", "loopback".
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
  // Needed by "tls": its own certificate and the authorities of its peers.
  CertificateFiles certificates;
  // IP:PORT of "tls", and the IP address that peers reach it at; empty: that of `tls_listen`.
  std::string tls_listen = "127.0.0.1:0";
  std::string tls_advertise;
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
