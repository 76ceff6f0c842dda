// A program under test as a child process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::testing {

// Not thread-safe. The destructor kills a child that still runs.
class ChildProcess {
 public:
  // Stdout and stderr both go to output(). A program that cannot be started ends with code 127.
  ChildProcess(const std::string& program, std::vector<std::string> arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Reads until the output holds `text`. False when the child closed its output or `timeout` ran
  // out first.
  bool WaitFor(absl::string_view text, absl::Duration timeout = absl::Seconds(60));
  void Signal(int number) const;
  // Reads the rest and waits for the end: the exit code, or minus the number of the signal that
  // ended it.
  int Wait();
  const std::string& output() const { return output_; }

 private:
  bool ReadSome(int timeout_ms);

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string output_;
};

}  // namespace sluice::testing
