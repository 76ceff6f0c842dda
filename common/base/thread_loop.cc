#include "base/thread_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<ThreadLoop>> ThreadLoop::Start(absl::string_view name,
                                                              const Clock& clock,
                                                              size_t queue_max) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0)
    return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", strerror(errno)));
  const int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // the wake-up descriptor
  if (event_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, event_fd, &event) != 0) {
    const std::string reason = strerror(errno);
    if (event_fd >= 0) close(event_fd);
    close(epoll_fd);
    return absl::ResourceExhaustedError(absl::StrCat("eventfd for loop ", name, ": ", reason));
  }
  std::unique_ptr<ThreadLoop> loop(new ThreadLoop(clock, queue_max, epoll_fd, event_fd));
  loop->thread_ = std::thread([raw = loop.get(), name = std::string(name)] { raw->Run(name); });
  return loop;
}

ThreadLoop::ThreadLoop(const Clock& clock, size_t queue_max, int epoll_fd, int event_fd)
    : clock_(clock),
      epoll_fd_(epoll_fd),
      event_fd_(event_fd),
      queue_(queue_max, [this] { Wake(); }) {}

ThreadLoop::~ThreadLoop() {
  Stop();
  close(event_fd_);
  close(epoll_fd_);
}

bool ThreadLoop::Post(Task task) { return queue_.TryPush(std::move(task)); }

TimerId ThreadLoop::RunAt(absl::Time at, Task task) {
  SLUICE_DCHECK(IsCurrentThread());
  return timers_.Add(at, std::move(task));
}

bool ThreadLoop::Cancel(TimerId timer) {
  SLUICE_DCHECK(IsCurrentThread());
  return timers_.Cancel(timer);
}

absl::Status ThreadLoop::WatchReadable(int fd, absl::AnyInvocable<void()> ready) {
  SLUICE_DCHECK(IsCurrentThread());
  watches_.push_back(std::make_unique<Watch>(Watch{fd, std::move(ready)}));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = watches_.back().get();
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::InternalError(absl::StrCat("epoll_ctl on fd ", fd, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

void ThreadLoop::Stop() {
  if (!thread_.joinable()) return;
  SLUICE_CHECK(!IsCurrentThread()) << "a loop cannot wait for itself";
  queue_.Close();
  stopping_.store(true);
  Wake();
  thread_.join();
}

void ThreadLoop::Wake() {
  const uint64_t one = 1;
  // EAGAIN means the counter is saturated: the loop is awake then anyway.
  if (write(event_fd_, &one, sizeof(one)) < 0) SLUICE_CHECK(errno == EAGAIN);
}

void ThreadLoop::Run(const std::string& name) {
  thread_id_.store(std::this_thread::get_id());
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  for (;;) {
    RunPosted();
    timers_.Advance(clock_.Now());
    if (stopping_.load() && queue_.size() == 0) return;
    if (queue_.size() > 0) continue;
    if (before_sleep_ && before_sleep_()) continue;
    WaitForEvents();
  }
}

// Only what is queued now: a task that posts itself again must let timers and descriptors have
// their turn.
void ThreadLoop::RunPosted() {
  for (size_t left = queue_.size(); left > 0; --left) {
    std::optional<Task> task = queue_.TryPop();
    if (!task) return;
    (*task)();
  }
}

int ThreadLoop::SleepMs() const {
  const absl::Time due = timers_.NextDue();
  if (due == absl::InfiniteFuture()) return -1;
  const absl::Duration left = due - clock_.Now();
  if (left <= absl::ZeroDuration()) return 0;
  // Rounded up, so that the timer is due when the wait ends.
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 3600 * 1000));
}

void ThreadLoop::WaitForEvents() {
  epoll_event events[16];
  const int ready = epoll_wait(epoll_fd_, events, 16, SleepMs());
  for (int i = 0; i < ready; ++i) {
    if (events[i].data.ptr == nullptr) {
      uint64_t count = 0;
      // Empties the counter; EAGAIN only says that it was empty.
      if (read(event_fd_, &count, sizeof(count)) < 0) SLUICE_CHECK(errno == EAGAIN);
      continue;
    }
    static_cast<Watch*>(events[i].data.ptr)->ready();
  }
}

}  // namespace sluice
