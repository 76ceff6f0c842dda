// What the router reports. Implemented over common/telemetry in production, counted in tests.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "cluster/directory.h"
#include "identity/authenticator.h"
#include "services/router/generation.h"

namespace sluice::router {

// How a worker stands with this router.
enum class WorkerStanding { kUsable, kNotReady, kDraining, kBreakerOpen };
inline constexpr std::array<WorkerStanding, 4> kWorkerStandings = {
    WorkerStanding::kUsable, WorkerStanding::kNotReady, WorkerStanding::kDraining,
    WorkerStanding::kBreakerOpen};

// The router at one moment.
struct RouterState {
  size_t waiting = 0;
  size_t running = 0;
  bool manager_connected = false;
  // Workers by role (prefill, decode, both) and standing.
  std::array<std::array<uint32_t, kWorkerStandings.size()>, 3> workers = {};
};

// Thread-safe.
class RouterMetrics {
 public:
  virtual ~RouterMetrics() = default;
  // A caller without valid credentials; it belongs to no tenant and is no request.
  virtual void Refused(identity::Refusal refusal, const absl::Status& status) = 0;
  // The tenants file or what belongs to it was read again; `tenants` are those in force.
  virtual void TenantsRead(const absl::Status& status, absl::Span<const TenantId> tenants) = 0;
  // Every request once, however it ended.
  virtual void RequestEnded(const TenantId& tenant, const absl::Status& status,
                            absl::Duration duration) = 0;
  // Those that were let through, too: what their workers did. `arrived` and the report's times are
  // of one clock.
  virtual void GenerationEnded(const TenantId& tenant, absl::Time arrived,
                               const GenerationReport& report) = 0;
  virtual void QueueWait(const TenantId& tenant, absl::Duration wait) = 0;
  virtual void Placed(bool split) = 0;
  virtual void LookupFailed() = 0;
  virtual void Token(absl::Duration gap) = 0;
  virtual void State(const RouterState& state) = 0;
};

}  // namespace sluice::router
