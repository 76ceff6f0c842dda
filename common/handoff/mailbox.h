// Messages to a loop, in order, none lost: a loop may refuse a task when its queue is full, but
// what one loop of a worker tells the other must arrive.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/loop.h"
#include "base/mutex.h"

namespace sluice::handoff {

// A copy to send to another thread. Statuses share a counted representation, and ThreadSanitizer
// cannot see the counting inside Debian's uninstrumented library.
inline absl::Status Unshared(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

// Holds at most one task in the loop's queue, whatever it carries. Bounded by its users: a few
// messages for each call.
class Mailbox {
 public:
  // The loop must have stopped before the mailbox is destroyed; what was not run by then is
  // destroyed.
  explicit Mailbox(Loop& loop) : loop_(loop) {}

  // Thread-safe.
  void Push(Loop::Task task) {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
      if (posted_) return;
      posted_ = true;
    }
    // Refused: the next push tries again, and so does whoever drains for another reason.
    if (!loop_.Post([this] { Drain(); })) {
      MutexLock lock(mutex_);
      posted_ = false;
    }
  }

  // Runs what is there. Only on the loop.
  void Drain() {
    std::vector<Loop::Task> tasks;
    {
      MutexLock lock(mutex_);
      posted_ = false;
      tasks.swap(tasks_);
    }
    for (Loop::Task& task : tasks) task();
  }

  bool empty() const {
    MutexLock lock(mutex_);
    return tasks_.empty();
  }

 private:
  Loop& loop_;
  mutable Mutex mutex_;
  std::vector<Loop::Task> tasks_ SLUICE_GUARDED_BY(mutex_);
  bool posted_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::handoff
