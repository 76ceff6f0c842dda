#include "base/clock.h"

#include <algorithm>
#include <ctime>

#include "absl/time/clock.h"

namespace sluice {

absl::Time SystemClock::Now() const {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::TimeFromTimespec(now);
}

absl::Time SystemClock::WallNow() const { return absl::Now(); }

absl::Time FakeClock::Now() const {
  MutexLock lock(mutex_);
  return now_;
}

void FakeClock::Advance(absl::Duration by) {
  MutexLock lock(mutex_);
  now_ += by;
}

void FakeClock::AdvanceTo(absl::Time to) {
  MutexLock lock(mutex_);
  now_ = std::max(now_, to);
}

}  // namespace sluice
