#include "base/timer_wheel.h"

namespace sluice {

TimerId TimerWheel::Add(absl::Time at, Callback callback) {
  const TimerId id = ++last_id_;
  timers_.emplace(Key{at, id}, std::move(callback));
  by_id_.emplace(id, at);
  return id;
}

bool TimerWheel::Cancel(TimerId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  timers_.erase(Key{found->second, id});
  by_id_.erase(found);
  return true;
}

void TimerWheel::Advance(absl::Time now) {
  const TimerId last_before = last_id_;
  for (auto it = timers_.begin(); it != timers_.end() && it->first.first <= now;) {
    if (it->first.second > last_before) {
      ++it;
      continue;
    }
    Callback callback = std::move(it->second);
    by_id_.erase(it->first.second);
    timers_.erase(it);
    callback();
    it = timers_.begin();  // the callback may have changed the map
  }
}

absl::Time TimerWheel::NextDue() const {
  return timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first.first;
}

}  // namespace sluice
