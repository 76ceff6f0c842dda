// Whether the loops of a process still move.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/loop.h"
#include "base/mutex.h"

namespace sluice::services {

// A loop that is silent this long is stuck: the longest task of any takes seconds.
inline constexpr absl::Duration kLoopSilenceMax = absl::Seconds(60);

class LoopWatch {
 public:
  // `clock` must outlive the watch.
  explicit LoopWatch(const Clock& clock) : clock_(clock) {}

  // `loop` shows a sign of life every few seconds until it stops; it may outlive the watch. Before
  // Check is called by others.
  void Add(absl::string_view name, Loop& loop);
  // OK, or UNAVAILABLE naming the loop that has not moved for kLoopSilenceMax. Thread-safe.
  absl::Status Check() const;

 private:
  struct Beat {
    explicit Beat(std::string n, absl::Time now) : name(std::move(n)), at(now) {}
    const std::string name;
    Mutex mutex;
    absl::Time at SLUICE_GUARDED_BY(mutex);
  };
  static void Tick(const std::shared_ptr<Beat>& beat, Loop& loop);

  const Clock& clock_;
  std::vector<std::shared_ptr<Beat>> beats_;
};

}  // namespace sluice::services
