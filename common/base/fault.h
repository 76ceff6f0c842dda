// Named fault points: tests stop, fail or count at a state change. Compiled out unless
// SLUICE_FAULTS is on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace sluice {

// The armed points of one process or one simulated worker. Thread-safe.
class FaultInjector {
 public:
  // Runs when the point is hit: may block (pause), return an error (fail) or OK (only observe).
  using Action = absl::AnyInvocable<absl::Status()>;

  // With a `subject` only hits that name the same one run the action: one request among many.
  // Returns how often the point was hit before; every later hit sees the action.
  uint64_t Arm(absl::string_view point, Action action, absl::string_view subject = "");
  void Disarm(absl::string_view point);
  // OK unless an armed action says otherwise. Counts every hit.
  absl::Status Hit(absl::string_view point, absl::string_view subject = "");
  uint64_t HitCount(absl::string_view point) const;

 private:
  struct Point {
    uint64_t hits = 0;
    std::string subject;  // empty: any
    std::shared_ptr<Action>
        action;  // shared: a hit may still run it while another thread disarms the point
  };
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Point> points_ SLUICE_GUARDED_BY(mutex_);
};

// Whether this is a build for tests, which contains the points.
#ifdef SLUICE_FAULTS_ENABLED
inline constexpr bool kFaultPointsBuilt = true;
#else
inline constexpr bool kFaultPointsBuilt = false;
#endif

}  // namespace sluice

// `injector` is a FaultInjector* that may be null. Yields an absl::Status. The second form names
// whom the point is about.
#ifdef SLUICE_FAULTS_ENABLED
#define SLUICE_FAULT(injector, point) \
  ((injector) == nullptr ? ::absl::OkStatus() : (injector)->Hit(point))
#define SLUICE_FAULT_OF(injector, point, subject) \
  ((injector) == nullptr ? ::absl::OkStatus() : (injector)->Hit(point, subject))
#else
#define SLUICE_FAULT(injector, point) (static_cast<void>(injector), ::absl::OkStatus())
#define SLUICE_FAULT_OF(injector, point, subject) \
  (static_cast<void>(injector), static_cast<void>(subject), ::absl::OkStatus())
#endif
