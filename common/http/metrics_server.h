// A small HTTP server on one thread: /metrics for Prometheus, /live, /ready and /health for probes.
// GET only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::http {

// Called on the server's thread, one at a time; should take milliseconds.
struct MetricsSources {
  absl::AnyInvocable<std::string()> metrics;
  // OK, or why not; the message is the body of the 503.
  absl::AnyInvocable<absl::Status()> live;
  absl::AnyInvocable<absl::Status()> ready;
};

struct MetricsServerOptions {
  std::string listen = "127.0.0.1:0";
  bool insecure_listen_anywhere = false;
  size_t connections_max = 64;  // over it the one that has waited longest is closed
};

class MetricsServer {
 public:
  // Errors as rpc::CheckListen.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const MetricsServerOptions& options,
                                                              MetricsSources sources);
  virtual ~MetricsServer() = default;  // closes all connections and joins
  // Bound "host:port".
  virtual const std::string& address() const = 0;
};

}  // namespace sluice::http
