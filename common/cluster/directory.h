// The workers a router may use: what they are, how loaded they are, and whether they are trusted
// just now.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"

namespace sluice::cluster {

enum class Role { kPrefill, kDecode, kBoth };

// What a worker says about itself when it registers. A change of incarnation makes it a new worker
// of the same name.
struct WorkerDescription {
  WorkerId id;
  Incarnation incarnation;
  Role role = Role::kBoth;
  std::string grpc_address;
  std::string model;
  Id128 model_digest;
  Id128 numerics_id;
  Id128 layout_hash;
  std::string layout;  // described, for errors
  uint32_t page_tokens = 0;
  uint64_t kv_bytes_per_token = 0;
  uint32_t context_tokens = 0;
  uint32_t vocabulary = 0;
  std::string host;
};

// What a worker says of its work; comes with heartbeats and replies.
struct LoadReport {
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  uint64_t pages_free = 0;
  uint64_t pages_total = 0;
  uint64_t pages_cached = 0;
  double prefill_tokens_per_s = 0;
  double decode_step_ms = 0;
};

// Failures in a row open it; after a pause one probe may close it again. One for each worker, and
// one for each pair of a prefill and a decode worker.
struct BreakerOptions {
  uint32_t failures = 5;
  absl::Duration window = absl::Seconds(10);
  absl::Duration open_min = absl::Seconds(5);
  absl::Duration open_max = absl::Seconds(60);
  // A pair that cannot move pages, though both get on with others, fails every time.
  uint32_t pair_failures = 2;
  size_t pairs_max = 4096;  // remembered; the oldest go first
};

struct MembershipOptions {
  // A worker whose connection broke is not used for so long, unless it has registered anew.
  absl::Duration broken_for = absl::Milliseconds(500);
  // A new cache-manager learns of workers one by one: those it does not name yet are kept so long.
  absl::Duration unconfirmed_for = absl::Seconds(10);
  // A worker that came back is given work in growing measure over this time, because its caches are
  // empty and what killed it may do so again.
  absl::Duration slow_start = absl::Seconds(10);
};

// Counts failures; says when to stay away. Plain state.
class Breaker {
 public:
  void RecordFailure(absl::Time now, uint32_t failures_max, const BreakerOptions& options);
  void RecordSuccess() { *this = Breaker(); }
  bool OpenAt(absl::Time now) const { return now < open_until_; }

 private:
  std::vector<absl::Time> failures_;  // fewer than failures_max
  absl::Time open_until_ = absl::InfinitePast();
  absl::Duration open_for_;
  bool half_open_ = false;
};

// One worker as placement sees it.
struct WorkerState {
  WorkerDescription description;
  LoadReport load;
  bool ready = false;
  bool draining = false;
  // Work this router sent that the worker's last report may not know yet.
  uint64_t sent_prefill_tokens = 0;
  uint64_t sent_decode_tokens = 0;
  uint32_t sent_requests = 0;
  bool breaker_open = false;
  // 1, or less while a worker that came back is being started slowly: the share of its usual work.
  double warmth = 1;

  bool CanPrefill() const { return description.role != Role::kDecode; }
  bool CanDecode() const { return description.role != Role::kPrefill; }
};

// A prefill and a decode worker.
using WorkerPair = std::pair<WorkerId, WorkerId>;

// How fast pages went from the one to the other of late.
struct MoveRate {
  WorkerPair pair;
  double bytes_per_s = 0;
};

// Owned by the router's loop; not thread-safe.
class Directory {
 public:
  Directory(const Clock& clock, const BreakerOptions& options,
            const MembershipOptions& membership = {})
      : clock_(clock), options_(options), membership_(membership) {}

  struct Update {
    WorkerDescription description;
    LoadReport load;
    bool ready = false;
    bool draining = false;
  };
  // Replaces the view of the cluster. Views older than the last are ignored (returns false).
  // Workers that are gone or have a new incarnation since are returned in `*lost`: their calls are
  // dead.
  bool ApplyView(uint64_t version, std::vector<Update> workers, std::vector<WorkerId>* lost);
  // The manager that numbers the views was replaced; its first view is taken whatever its version,
  // and workers that it does not name are kept for a while: they may be on their way to it.
  void ManagerReplaced();

  void ReportLoad(const WorkerId& worker, Incarnation incarnation, const LoadReport& load);
  // Books work on a worker until Finished takes it off again. `tokens` of prompt for prefill, of
  // context for decode.
  void Sent(const WorkerId& worker, bool prefill, uint64_t tokens);
  void Finished(const WorkerId& worker, bool prefill, uint64_t tokens);

  void RecordSuccess(const WorkerId& worker);
  // Only failures that speak against the worker: unreachable, internal, broken stream. Not refusals
  // for lack of room.
  void RecordFailure(const WorkerId& worker);
  // The process was draining when it was last heard of: it has ended in order, or is about to.
  bool Drains(const WorkerId& worker, Incarnation incarnation) const;
  // A connection to this process broke while calls ran: it is not used for a moment.
  void ConnectionBroke(const WorkerId& worker, Incarnation incarnation);
  // The pages of a request went, or did not go, from the one to the other.
  void RecordPairSuccess(const WorkerPair& pair) { pairs_.erase(pair); }
  void RecordPairFailure(const WorkerPair& pair);
  // So many bytes of a request's pages went from the one to the other, and its stream waited
  // `waited` for them after its prompt was computed. Small moves say nothing of the link and are
  // ignored; what a link did a minute ago is forgotten, so that it is tried again.
  void RecordMove(const WorkerPair& pair, uint64_t bytes, absl::Duration waited);

  // Null when unknown.
  const WorkerState* Find(const WorkerId& worker) const;
  // All workers in order of id; readiness, breakers and warmth are those of the time of the call.
  std::vector<WorkerState> Workers() const;
  // Pairs to stay away from just now, in order.
  std::vector<WorkerPair> BrokenPairs() const;
  // Measured of late, in order.
  std::vector<MoveRate> MoveRates() const;
  uint64_t version() const { return version_; }

 private:
  struct Entry {
    WorkerState state;
    Breaker breaker;
    absl::Time broken_until = absl::InfinitePast();
    absl::Time kept_until = absl::InfinitePast();      // though the manager does not name it
    absl::Time started_slowly = absl::InfinitePast();  // since when it is back
  };
  struct PairEntry {
    Breaker breaker;
    absl::Time failed;
  };
  struct Moves {
    double s_per_byte =
        0;  // the mean of times, not of rates: a link that became slow shows at once
    absl::Time last;
  };
  const Clock& clock_;
  const BreakerOptions options_;
  const MembershipOptions membership_;
  uint64_t version_ = 0;
  absl::flat_hash_map<WorkerId, Entry> entries_;
  // Names of workers that were lost and are not back, and since when. Both at most kLeftMax.
  absl::flat_hash_map<WorkerId, absl::Time> left_;
  absl::flat_hash_map<WorkerId, Incarnation> drained_;  // the last one lost while draining
  absl::flat_hash_map<WorkerPair, PairEntry> pairs_;
  absl::flat_hash_map<WorkerPair, Moves> moves_;  // at most options_.pairs_max
};

}  // namespace sluice::cluster
