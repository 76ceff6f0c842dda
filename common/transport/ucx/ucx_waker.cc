#include "transport/ucx/ucx_waker.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace sluice::transport {

absl::StatusOr<std::unique_ptr<UcxWaker>> UcxWaker::Create(int ucx_fd) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  std::unique_ptr<UcxWaker> waker(new UcxWaker(epoll_fd, timer_fd));
  for (const int fd : {ucx_fd, timer_fd}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_fd < 0 || fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("descriptors to wait for UCX: ", strerror(errno)));
    }
  }
  return waker;
}

UcxWaker::~UcxWaker() {
  if (timer_fd_ >= 0) close(timer_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

void UcxWaker::WakeAfter(absl::Duration delay) {
  itimerspec when{};
  when.it_value = absl::ToTimespec(delay);
  SLUICE_CHECK(timerfd_settime(timer_fd_, 0, &when, nullptr) == 0) << strerror(errno);
  set_ = true;
}

void UcxWaker::Clear() {
  if (!set_) return;
  const itimerspec never{};
  SLUICE_CHECK(timerfd_settime(timer_fd_, 0, &never, nullptr) == 0) << strerror(errno);
  set_ = false;
}

}  // namespace sluice::transport
