// Many loops on one virtual clock and one thread: code that runs on ThreadLoops in production runs
// here step by step, and every run with the same seed and the same calls is the same run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/loop.h"
#include "base/random.h"
#include "base/timer_wheel.h"

namespace sluice::testing {

class SimWorld;

// One simulated thread. Made by SimWorld::AddLoop.
class SimLoop final : public Loop {
 public:
  bool Post(Task task) override;
  TimerId RunAt(absl::Time at, Task task) override { return timers_.Add(at, std::move(task)); }
  bool Cancel(TimerId timer) override { return timers_.Cancel(timer); }
  const Clock& clock() const override;

  // A paused loop runs nothing; what is posted waits, timers become late. As a process that was
  // stopped for a while.
  void Pause() { paused_ = true; }
  void Resume() { paused_ = false; }
  bool paused() const { return paused_; }
  // Drops everything and refuses what comes: the process is gone. Do this before what the tasks
  // refer to is destroyed.
  void Crash();
  bool crashed() const { return crashed_; }
  const std::string& name() const { return name_; }

 private:
  friend class SimWorld;
  SimLoop(SimWorld& world, std::string name, size_t queue_max)
      : world_(world), name_(std::move(name)), queue_max_(queue_max) {}
  absl::Time NextDue() const;
  void RunOne(absl::Time now);

  SimWorld& world_;
  const std::string name_;
  const size_t queue_max_;
  std::deque<Task> tasks_;
  TimerWheel timers_;
  bool paused_ = false;
  bool crashed_ = false;
};

// Owns the clock and the loops. Not thread-safe.
class SimWorld {
 public:
  // Among events that are due at the same moment the seed chooses; 0: always the first loop in
  // order of creation.
  explicit SimWorld(uint64_t seed = 0) : seeded_(seed != 0), random_(seed) {}

  const Clock& clock() const { return clock_; }
  absl::Time Now() const { return clock_.Now(); }
  // The loop lives as long as the world, crashed or not.
  SimLoop& AddLoop(absl::string_view name, size_t queue_max = 4096);
  // Events that come from outside the loops, such as a simulated network: when the next is due, and
  // what runs it.
  void AddSource(std::function<absl::Time()> next_due, std::function<void(absl::Time now)> advance);
  // Called after every event: the place for invariants.
  void SetObserver(std::function<void()> observer) { observer_ = std::move(observer); }

  // Runs the earliest event, moving the clock to it. Returns false, changing nothing, if there is
  // none at or before `until`.
  bool RunOne(absl::Time until = absl::InfiniteFuture());
  // Runs everything up to `until` and leaves the clock there. Returns the number of events.
  size_t RunUntil(absl::Time until);
  size_t RunFor(absl::Duration duration) { return RunUntil(Now() + duration); }
  // Runs until `done` holds. Returns false if there was nothing left to run or `events_max` was
  // reached first.
  bool RunUntilTrue(const std::function<bool()>& done, size_t events_max = 1'000'000);

  uint64_t events() const { return events_; }
  // Hash over the order of events so far: equal for equal runs.
  uint64_t log_hash() const { return log_hash_; }

 private:
  struct Source {
    std::function<absl::Time()> next_due;
    std::function<void(absl::Time)> advance;
  };
  absl::Time EarliestDue() const;
  void RunDue(absl::Time now);

  FakeClock clock_;
  const bool seeded_;
  SeededRandom random_;
  std::vector<std::unique_ptr<SimLoop>> loops_;
  std::vector<Source> sources_;
  std::function<void()> observer_;
  uint64_t events_ = 0;
  uint64_t log_hash_ = 0;
};

}  // namespace sluice::testing
