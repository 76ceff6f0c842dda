#include "services/cli/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace sluice::cli {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);  // only reached by a failing test

// A child that waits for signals.
pid_t StartWaiting(bool ignore_term) {
  std::array<int, 2> ready{};
  EXPECT_EQ(pipe(ready.data()), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    if (ignore_term) signal(SIGTERM, SIG_IGN);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  return pid;
}

class StopProcessesTest : public testing::Test {
 protected:
  const SystemClock clock_;
};

TEST_F(StopProcessesTest, StopsAndReapsChildren) {
  const std::vector<pid_t> children = {StartWaiting(false), StartWaiting(false)};
  EXPECT_TRUE(StopProcesses(children, clock_, kLong));
  for (const pid_t child : children)
    EXPECT_EQ(waitpid(child, nullptr, WNOHANG), -1) << "not reaped";
  EXPECT_TRUE(StopProcesses(children, clock_, kLong)) << "they are gone";
}

TEST_F(StopProcessesTest, AProcessThatNobodyReapsHasStopped) {
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t pid = StartWaiting(false);
    if (write(ready[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    for (;;) pause();  // and never asks for its child's exit code
  }
  pid_t pid = 0;
  ASSERT_EQ(read(ready[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  EXPECT_TRUE(StopProcesses({pid}, clock_, kLong));
  EXPECT_EQ(kill(pid, 0), 0) << "it should still be there as a zombie";
  EXPECT_TRUE(StopProcesses({parent}, clock_, kLong));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(StopProcessesTest, KillsWhatDoesNotStop) {
  const pid_t child = StartWaiting(true);
  EXPECT_FALSE(StopProcesses({child}, clock_, absl::Milliseconds(20)));
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), -1);
}

TEST_F(StopProcessesTest, NeverTouchesInitOrGroups) {
  EXPECT_TRUE(StopProcesses({0, 1, -1}, clock_, kLong));
}

}  // namespace
}  // namespace sluice::cli
