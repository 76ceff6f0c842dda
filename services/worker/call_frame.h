// What the gRPC services of a worker share.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/fault.h"
#include "handoff/worker.h"
#include "rpc/error.h"
#include "rpc/service_state.h"
#include "services/worker/tenant_gate.h"
#include "services/worker/worker_metrics.h"

namespace sluice::services {

// References that the services use; all outlive the gRPC server.
struct WorkerFrame {
  handoff::Worker& worker;
  rpc::ServiceState& state;
  WorkerMetrics& metrics;
  const Clock& clock;
  FaultInjector* faults;  // null in builds without fault points
  std::string source;     // "decode/decode-0"
  uint32_t context_tokens = 0;
  int32_t vocabulary = 0;
  absl::Duration credit_lease;
  const TenantGate& gate;
};

// The typed error for what a worker answered: reason, source and request id.
absl::Status TypedError(const absl::Status& status, absl::string_view source,
                        absl::string_view request_id);

inline absl::Status DrainingError() {
  return rpc::MakeError(v1::DRAINING, "this worker is shutting down; use another one");
}

// Checks what the engine takes for granted: prompt length and ids, sampling ranges.
absl::Status CheckPrompt(const WorkerFrame& frame, const std::vector<engine::TokenId>& prompt,
                         const std::vector<engine::TokenId>& emitted);

}  // namespace sluice::services
