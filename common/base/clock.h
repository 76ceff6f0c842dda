// Time is injected: production code never asks the system for it.
#pragma once

#include "absl/time/time.h"
#include "base/mutex.h"

namespace sluice {

// Now() never jumps and never runs backwards (CLOCK_BOOTTIME in production): leases, deadlines and
// timers use it. Its zero has no meaning outside this process, so it never travels: messages carry
// durations. Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Calendar time, for log lines, certificates and HTTP dates only.
  virtual absl::Time WallNow() const = 0;
};

class SystemClock final : public Clock {
 public:
  absl::Time Now() const override;
  absl::Time WallNow() const override;
};

// A clock that moves only when told. For tests and the simulation.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch() + absl::Hours(1)) : now_(start) {}
  absl::Time Now() const override;
  absl::Time WallNow() const override { return Now(); }
  void Advance(absl::Duration by);
  // Does nothing when `to` is in the past.
  void AdvanceTo(absl::Time to);

 private:
  mutable Mutex mutex_;
  absl::Time now_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
