// What the router reports. Implemented over common/telemetry in production, counted in tests.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::router {

// Thread-safe.
class RouterMetrics {
 public:
  virtual ~RouterMetrics() = default;
  virtual void RequestRejected(const TenantId& tenant, absl::string_view reason) = 0;
  virtual void RequestQueued(size_t waiting, size_t running) = 0;
  virtual void QueueWait(absl::Duration wait) = 0;
  virtual void Placed(bool split, uint32_t predicted_cached_tokens) = 0;
  virtual void LookupFailed() = 0;
  virtual void FirstToken(absl::Duration ttft) = 0;
  virtual void Token(absl::Duration gap) = 0;
  virtual void RequestDone(const TenantId& tenant, absl::string_view outcome, absl::Duration duration, const v1::Usage& usage,
                           uint32_t migrations, uint32_t retries) = 0;
  // 0 or 1.
  virtual void Degraded(absl::string_view dependency, bool degraded) = 0;
};

}  // namespace sluice::router
