// Timers of one loop: leases, deadlines, retries. Each loop owns one wheel, so that every wait in
// it has an end.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace sluice {

// Owned by one loop; not thread-safe. Timers fire in order of their time, equal times in order of
// their making, so a simulation replays exactly. Cost: O(log n) for each call.
class TimerWheel {
 public:
  using Callback = absl::AnyInvocable<void()>;

  // `callback` runs inside Advance() once now >= `at`.
  TimerId Add(absl::Time at, Callback callback);
  // Returns false if the timer fired or was cancelled before.
  bool Cancel(TimerId id);
  // Runs everything due at `now`. Callbacks may add and cancel timers; one added with a time that
  // is due already waits for the next Advance, so a callback that re-arms itself cannot hang the
  // loop.
  void Advance(absl::Time now);
  // The time of the next timer, or InfiniteFuture.
  absl::Time NextDue() const;
  size_t size() const { return by_id_.size(); }

 private:
  using Key = std::pair<absl::Time, TimerId>;
  absl::btree_map<Key, Callback> timers_;
  absl::flat_hash_map<TimerId, absl::Time> by_id_;
  TimerId last_id_ = kNoTimer;
};

}  // namespace sluice
