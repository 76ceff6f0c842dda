// A queue with a fixed bound between threads. Full is an answer, not a wait: producers decide what
// to refuse.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace sluice {

// Many producers, one consumer. Thread-safe.
// After Close() pushes are refused and pops drain what is left.
template <typename T>
class BoundedQueue {
 public:
  // `on_push`, if given, runs after every successful push outside the lock (an eventfd wake-up,
  // say).
  explicit BoundedQueue(size_t capacity, absl::AnyInvocable<void()> on_push = nullptr)
      : capacity_(capacity), on_push_(std::move(on_push)) {}

  // Returns false, leaving `value` untouched, when the queue is full or closed.
  bool TryPush(T&& value) {
    {
      MutexLock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    not_empty_.NotifyOne();
    if (on_push_) on_push_();
    return true;
  }

  // Takes one item if there is one; never waits.
  std::optional<T> TryPop() {
    MutexLock lock(mutex_);
    return PopLocked();
  }

  // Waits up to `timeout` for an item; empty when it ran out or the queue is closed and drained.
  std::optional<T> PopFor(absl::Duration timeout) {
    MutexLock lock(mutex_);
    const absl::Duration step_max = absl::Hours(1);
    absl::Duration wait = timeout < step_max ? timeout : step_max;
    while (items_.empty() && !closed_) {
      if (!not_empty_.WaitFor(mutex_, wait)) break;
    }
    return PopLocked();
  }

  // Takes everything that is queued; never waits.
  std::vector<T> Drain() {
    MutexLock lock(mutex_);
    std::vector<T> all(std::make_move_iterator(items_.begin()),
                       std::make_move_iterator(items_.end()));
    items_.clear();
    return all;
  }

  void Close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    not_empty_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> PopLocked() SLUICE_REQUIRES(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_empty_;
  std::deque<T> items_ SLUICE_GUARDED_BY(mutex_);
  bool closed_ SLUICE_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void()> on_push_;
};

}  // namespace sluice
