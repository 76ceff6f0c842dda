#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "absl/strings/match.h"
#include "base/check.h"
#include "base/clock.h"

namespace sluice::testing {

ChildProcess::ChildProcess(const std::string& program, std::vector<std::string> arguments) {
  std::array<int, 2> ends = {-1, -1};
  SLUICE_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  pipe_ = ends[0];
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  if (pipe_ >= 0) close(pipe_);
}

bool ChildProcess::ReadSome(int timeout_ms) {
  pollfd readable = {pipe_, POLLIN, 0};
  if (poll(&readable, 1, timeout_ms) <= 0) return false;
  std::array<char, 4096> buffer;
  const ssize_t bytes = read(pipe_, buffer.data(), buffer.size());
  if (bytes <= 0) return false;
  output_.append(buffer.data(), static_cast<size_t>(bytes));
  return true;
}

bool ChildProcess::WaitFor(absl::string_view text, absl::Duration timeout) {
  const SystemClock clock;
  const absl::Time deadline = clock.Now() + timeout;
  while (!absl::StrContains(output_, text)) {
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - clock.Now());
    if (left_ms <= 0 || !ReadSome(static_cast<int>(left_ms))) return false;
  }
  return true;
}

void ChildProcess::Signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

int ChildProcess::Wait() {
  if (pid_ <= 0) return 127;
  while (ReadSome(-1)) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace sluice::testing
