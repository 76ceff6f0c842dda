// The loop of production.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/loop.h"
#include "base/timer_wheel.h"

namespace sluice {

// A thread with an epoll set: runs posted tasks, timers, and callbacks of file descriptors. Stops
// in its destructor.
class ThreadLoop final : public Loop {
 public:
  // `queue_max` bounds the posted tasks. `clock` must outlive the loop.
  static absl::StatusOr<std::unique_ptr<ThreadLoop>> Start(absl::string_view name,
                                                           const Clock& clock, size_t queue_max);
  ~ThreadLoop() override;

  bool Post(Task task) override;
  TimerId RunAt(absl::Time at, Task task) override;
  bool Cancel(TimerId timer) override;
  const Clock& clock() const override { return clock_; }

  // Calls `ready` on the loop whenever `fd` is readable. The fd stays the caller's and must stay
  // open until the loop ends. Only on the loop.
  absl::Status WatchReadable(int fd, absl::AnyInvocable<void()> ready);
  // `idle` runs before every sleep; returning true means there is more to do at once. For
  // transports that must arm their event fd. Only on the loop; one per loop.
  void SetBeforeSleep(absl::AnyInvocable<bool()> idle) { before_sleep_ = std::move(idle); }

  // Runs what is queued, then ends the thread. Called by the destructor; idempotent. Not from the
  // loop itself.
  void Stop();
  bool IsCurrentThread() const { return std::this_thread::get_id() == thread_id_.load(); }

 private:
  struct Watch {
    int fd;
    absl::AnyInvocable<void()> ready;
  };
  ThreadLoop(const Clock& clock, size_t queue_max, int epoll_fd, int event_fd);
  void Run(const std::string& name);
  void Wake();
  void RunPosted();
  int SleepMs() const;
  void WaitForEvents();

  const Clock& clock_;
  const int epoll_fd_;
  const int event_fd_;
  BoundedQueue<Task> queue_;
  TimerWheel timers_;
  std::vector<std::unique_ptr<Watch>> watches_;
  absl::AnyInvocable<bool()> before_sleep_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> thread_id_;  // set by the loop itself before it runs anything
  std::thread thread_;
};

}  // namespace sluice
