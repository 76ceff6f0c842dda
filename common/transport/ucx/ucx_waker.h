// The descriptor a loop sleeps on: readable when UCX has something, or when it is time to look
// without being told.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::transport {

// Belongs to one loop.
class UcxWaker {
 public:
  // `ucx_fd` stays UCX's. Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<UcxWaker>> Create(int ucx_fd);
  ~UcxWaker();
  UcxWaker(const UcxWaker&) = delete;
  UcxWaker& operator=(const UcxWaker&) = delete;

  int fd() const { return epoll_fd_; }
  // Becomes readable after `delay` even if UCX says nothing, until Clear.
  void WakeAfter(absl::Duration delay);
  void Clear();

 private:
  UcxWaker(int epoll_fd, int timer_fd) : epoll_fd_(epoll_fd), timer_fd_(timer_fd) {}
  const int epoll_fd_;
  const int timer_fd_;
  bool set_ = false;
};

}  // namespace sluice::transport
