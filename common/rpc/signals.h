// SIGTERM and SIGINT as calls on a thread of their own.
#pragma once

#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace sluice::rpc {

// Blocks the two signals for the calling thread and all threads it starts from now on: call first
// thing in main.
void BlockTerminationSignals();

// Thread-safe. The destructor ends the thread.
class SignalWatcher {
 public:
  // `first` runs on the watcher's thread at the first signal. The second signal ends the process at
  // once with code 130.
  static absl::StatusOr<std::unique_ptr<SignalWatcher>> Start(absl::AnyInvocable<void()> first);
  ~SignalWatcher();

 private:
  SignalWatcher(int signal_fd, int stop_fd) : signal_fd_(signal_fd), stop_fd_(stop_fd) {}
  void Run();

  const int signal_fd_;
  const int stop_fd_;
  absl::AnyInvocable<void()> first_;
  std::thread thread_;
};

}  // namespace sluice::rpc
