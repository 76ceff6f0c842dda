#include "tests/support/sim_loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice::testing {

bool SimLoop::Post(Task task) {
  if (crashed_ || tasks_.size() >= queue_max_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

const Clock& SimLoop::clock() const { return world_.clock(); }

void SimLoop::Crash() {
  crashed_ = true;
  tasks_.clear();
  timers_ = TimerWheel();
}

absl::Time SimLoop::NextDue() const {
  if (paused_ || crashed_) return absl::InfiniteFuture();
  return tasks_.empty() ? timers_.NextDue() : absl::InfinitePast();
}

// As in ThreadLoop, what is posted comes before timers.
void SimLoop::RunOne(absl::Time now) {
  if (tasks_.empty()) {
    timers_.Advance(now);
    return;
  }
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  task();
}

SimLoop& SimWorld::AddLoop(absl::string_view name, size_t queue_max) {
  loops_.push_back(std::unique_ptr<SimLoop>(new SimLoop(*this, std::string(name), queue_max)));
  return *loops_.back();
}

void SimWorld::AddSource(std::function<absl::Time()> next_due,
                         std::function<void(absl::Time now)> advance) {
  sources_.push_back({std::move(next_due), std::move(advance)});
}

absl::Time SimWorld::EarliestDue() const {
  absl::Time earliest = absl::InfiniteFuture();
  for (const auto& loop : loops_) earliest = std::min(earliest, loop->NextDue());
  for (const Source& source : sources_) earliest = std::min(earliest, source.next_due());
  return earliest;
}

bool SimWorld::RunOne(absl::Time until) {
  const absl::Time due = EarliestDue();
  if (due == absl::InfiniteFuture() || due > until) return false;
  clock_.AdvanceTo(due);
  RunDue(Now());
  ++events_;
  if (observer_) observer_();
  return true;
}

void SimWorld::RunDue(absl::Time now) {
  std::vector<size_t> due;  // loops first, then sources
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (loops_[i]->NextDue() <= now) due.push_back(i);
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].next_due() <= now) due.push_back(loops_.size() + i);
  }
  SLUICE_CHECK(!due.empty());
  const size_t chosen = due[seeded_ ? static_cast<size_t>(random_.Below(due.size())) : 0];
  log_hash_ = Mix64(log_hash_ ^ Mix64(static_cast<uint64_t>(absl::ToUnixNanos(now)) + chosen));
  if (chosen < loops_.size()) {
    loops_[chosen]->RunOne(now);
  } else {
    sources_[chosen - loops_.size()].advance(now);
  }
}

size_t SimWorld::RunUntil(absl::Time until) {
  size_t count = 0;
  while (RunOne(until)) ++count;
  clock_.AdvanceTo(until);
  return count;
}

bool SimWorld::RunUntilTrue(const std::function<bool()>& done, size_t events_max) {
  for (size_t i = 0; i < events_max; ++i) {
    if (done()) return true;
    if (!RunOne()) return false;
  }
  return done();
}

}  // namespace sluice::testing
