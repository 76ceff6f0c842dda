// When a failed attempt is worth another one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "cluster/token_bucket.h"

namespace sluice::cluster {

struct RetryOptions {
  uint32_t attempts_max = 3;    // dispatches before the first token
  uint32_t migrations_max = 3;  // moves after it
  absl::Duration backoff_min = absl::Milliseconds(25);
  absl::Duration backoff_max = absl::Seconds(1);
  // Longest wait for a worker with room.
  absl::Duration queue_wait_max = absl::Seconds(30);
  // Longest wait while there is no usable worker of a role: a restarting one is back by then or not
  // soon.
  absl::Duration no_worker_wait_max = absl::Milliseconds(600);
  // Longest wait of a request that saw a worker die for one where no other such request is on
  // trial; then it joins one.
  absl::Duration trial_wait_max = absl::Seconds(1);
  // Retries may be this share of requests and this many a second whatever comes, over a reserve of
  // budget_burst that covers a failure of everything one worker holds before the first token. The
  // rate keeps a router with few requests able to retry; to a worker it is no load.
  double budget_ratio = 0.1;
  double budget_per_s = 10;
  double budget_burst = 256;
};

enum class FailureKind {
  kFinal,    // the request itself is at fault, or its time is over
  kNoRoom,   // refused for lack of room: wait and place again; speaks against nobody
  kRetry,    // worth another try; the worker is not at fault
  kSuspect,  // worth another try elsewhere; speaks against the worker
};

// What the status of a call to a worker means for the request.
inline FailureKind Classify(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return FailureKind::kNoRoom;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return FailureKind::kSuspect;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:  // by the worker: it drains, or its peer gave up
    case absl::StatusCode::kNotFound:   // the reservation lapsed before it was asked for
    case absl::StatusCode::kFailedPrecondition:
      return FailureKind::kRetry;
    default:
      return FailureKind::kFinal;
  }
}

// Why a request left a worker, for metrics.
enum class MoveCause {
  kWorkerLost,   // the worker left the cluster
  kUnavailable,  // it could not be reached, or its stream broke
  kAborted,    // a lease, incarnation or page did not match any more, or the sequence was preempted
               // for good
  kNoRoom,     // it had accepted the request and then lacked room
  kCancelled,  // it gave up by itself: it drains, or its peer did
  kInternal,   // an error of the worker
};
inline constexpr std::array<MoveCause, 6> kMoveCauses = {
    MoveCause::kWorkerLost, MoveCause::kUnavailable, MoveCause::kAborted,
    MoveCause::kNoRoom,     MoveCause::kCancelled,   MoveCause::kInternal};

inline absl::string_view MoveCauseName(MoveCause cause) {
  switch (cause) {
    case MoveCause::kWorkerLost:
      return "worker_lost";
    case MoveCause::kUnavailable:
      return "unavailable";
    case MoveCause::kAborted:
      return "aborted";
    case MoveCause::kNoRoom:
      return "no_room";
    case MoveCause::kCancelled:
      return "cancelled";
    case MoveCause::kInternal:
      return "internal";
  }
  return "unknown";
}

// The cause behind the status of a call to a worker that Classify does not call final.
inline MoveCause MoveCauseOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return MoveCause::kUnavailable;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return MoveCause::kAborted;
    case absl::StatusCode::kResourceExhausted:
      return MoveCause::kNoRoom;
    case absl::StatusCode::kCancelled:
      return MoveCause::kCancelled;
    default:
      return MoveCause::kInternal;
  }
}

// Shared by all requests of a router, so that retries cannot multiply an overload: a token bucket
// that requests and time refill. Starts full. Owned by the router's loop; `clock` outlives it.
class RetryBudget {
 public:
  RetryBudget(const RetryOptions& options, const Clock& clock)
      : ratio_(options.budget_ratio),
        clock_(clock),
        bucket_({options.budget_per_s, options.budget_burst}, clock.Now()) {}
  void OnRequest() { bucket_.GiveBack(ratio_, clock_.Now()); }
  // Returns false when the budget is used up.
  bool Take() {
    const absl::Time now = clock_.Now();
    if (bucket_.level(now) < 1) return false;
    bucket_.Take(1, now);
    return true;
  }

 private:
  const double ratio_;
  const Clock& clock_;
  TokenBucket bucket_;
};

// Full jitter over an exponentially growing range.
inline absl::Duration Backoff(const RetryOptions& options, uint32_t failures,
                              RandomSource& random) {
  const absl::Duration cap =
      std::min(options.backoff_max,
               options.backoff_min * static_cast<double>(1u << std::min(failures, 16u)));
  return options.backoff_min / 2 + random.Unit() * cap;
}

}  // namespace sluice::cluster
