// Which request of a load test is sent when: a pure state machine over a time that it is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "services/cli/load/dataset.h"

namespace sluice::cli {

// Times from the start of `count` arrivals of a Poisson process of `rate` a second; all zero for an
// infinite rate. `rate` > 0.
std::vector<absl::Duration> PoissonArrivals(double rate, size_t count, uint64_t seed);

struct DispatchOptions {
  // First turns become due at these times after the start, one per session, never decreasing.
  std::vector<absl::Duration> arrivals;
  // Requests in flight at once; the others wait their turn in the order in which they became due.
  uint32_t max_concurrency = 0;  // at least 1
  // A turn becomes due this long after the turn before it ended.
  absl::Duration think_time;
};

struct Dispatch {
  size_t session = 0;
  size_t turn = 0;
  absl::Time due;
};

// Owned by one thread.
class Dispatcher {
 public:
  // `turns`: how many each session has; as many entries as there are arrivals.
  Dispatcher(DispatchOptions options, std::vector<size_t> turns, absl::Time start);

  // The next request to send at `now`; it counts as in flight from here on.
  std::optional<Dispatch> Next(absl::Time now);
  // When Next may have one, if nothing ends before: infinite when only an end can bring one.
  absl::Time next_due() const;
  // A request ended. After a failure its session goes no further.
  void OnDone(size_t session, bool ok, absl::Time now);
  // Nothing is sent any more; what is in flight may still end.
  void Stop();

  bool finished() const { return in_flight_ == 0 && waiting_.empty(); }
  uint32_t in_flight() const { return in_flight_; }
  uint32_t peak_in_flight() const { return peak_in_flight_; }
  // Turns that were given up: after a failure in their session, or after Stop.
  uint64_t not_sent() const { return not_sent_; }

 private:
  struct Later {
    bool operator()(const Dispatch& a, const Dispatch& b) const {
      return a.due != b.due ? a.due > b.due : a.session > b.session;
    }
  };

  const DispatchOptions options_;
  const std::vector<size_t> turns_;
  std::vector<size_t> sent_;  // turns of each session
  std::priority_queue<Dispatch, std::vector<Dispatch>, Later> waiting_;
  bool stopped_ = false;
  uint32_t in_flight_ = 0;
  uint32_t peak_in_flight_ = 0;
  uint64_t not_sent_ = 0;
};

}  // namespace sluice::cli
