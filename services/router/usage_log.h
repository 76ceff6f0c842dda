// Usage records for billing: one JSON line for each request that was let in.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/thread_loop.h"
#include "telemetry/metrics.h"

namespace sluice::router {

struct UsageRecord {
  absl::Time at;  // wall clock, of the end
  std::string tenant;
  std::string request_id;
  std::string model;
  std::string outcome;  // "ok", or the reason why it ended
  uint32_t choices = 1;
  // Counted once, however often the request was tried or moved.
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;
  absl::Duration duration;
};

// The line, without its end.
std::string ToJson(const UsageRecord& record);

// Appends to a file on a thread of its own; "-" is standard output. A file that was moved away is
// made anew, so that logs can be rotated. Thread-safe.
class UsageLog {
 public:
  // Errors: the file cannot be opened. Both must outlive it.
  static absl::StatusOr<std::unique_ptr<UsageLog>> Open(const std::string& path, const Clock& clock,
                                                        telemetry::Registry& metrics);
  // What was written stays; what waits is written.
  ~UsageLog();

  // Never blocks: what does not fit into the queue, or cannot be written, is counted as lost.
  void Write(UsageRecord record);

 private:
  UsageLog(std::string path, telemetry::Counter lost) : path_(std::move(path)), lost_(lost) {}
  // On the thread.
  void Append(const std::string& line);
  bool Reopen();

  const std::string path_;
  const telemetry::Counter lost_;
  std::ofstream file_;
  bool failing_ = false;
  std::unique_ptr<ThreadLoop> loop_;
};

}  // namespace sluice::router
