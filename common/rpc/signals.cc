#include "rpc/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace sluice::rpc {
namespace {

constexpr int kExitInterrupted = 130;

sigset_t TerminationSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void BlockTerminationSignals() {
  const sigset_t set = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE,
         SIG_IGN);  // a peer that closes its socket is an error of a write, not of the process
}

absl::StatusOr<std::unique_ptr<SignalWatcher>> SignalWatcher::Start(
    absl::AnyInvocable<void()> first) {
  const sigset_t set = TerminationSignals();
  const int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::unique_ptr<SignalWatcher> watcher(new SignalWatcher(signal_fd, stop_fd));
  if (signal_fd < 0 || stop_fd < 0)
    return absl::InternalError(absl::StrCat("signalfd: ", strerror(errno)));
  watcher->first_ = std::move(first);
  watcher->thread_ = std::thread([raw = watcher.get()] { raw->Run(); });
  return watcher;
}

SignalWatcher::~SignalWatcher() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    if (write(stop_fd_, &one, sizeof(one)) < 0)
      SLUICE_LOG(kError) << "cannot stop the signal thread: " << strerror(errno);
    thread_.join();
  }
  if (signal_fd_ >= 0) close(signal_fd_);
  if (stop_fd_ >= 0) close(stop_fd_);
}

void SignalWatcher::Run() {
  int seen = 0;
  for (;;) {
    std::array<pollfd, 2> fds = {{{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0) return;
    signalfd_siginfo info{};
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    if (++seen > 1) _exit(kExitInterrupted);
    SLUICE_LOG(kInfo) << "shutting down; a second signal ends at once"
                      << Field("signal", info.ssi_signo);
    first_();
  }
}

}  // namespace sluice::rpc
