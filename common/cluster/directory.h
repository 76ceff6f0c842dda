// The workers a router may use: what they are, how loaded they are, and whether they are trusted
// just now.
#pragma once

#include <cstdint>
#include <string>
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

// Failures in a row open it; after a pause one probe may close it again.
struct BreakerOptions {
  uint32_t failures = 5;
  absl::Duration window = absl::Seconds(10);
  absl::Duration open_min = absl::Seconds(5);
  absl::Duration open_max = absl::Seconds(60);
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

  bool CanPrefill() const { return description.role != Role::kDecode; }
  bool CanDecode() const { return description.role != Role::kPrefill; }
};

// Owned by the router's loop; not thread-safe.
class Directory {
 public:
  Directory(const Clock& clock, const BreakerOptions& options) : clock_(clock), options_(options) {}

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
  // The manager that numbers the views was replaced; its first view is taken whatever its version.
  void ResetVersion() { version_ = 0; }

  void ReportLoad(const WorkerId& worker, Incarnation incarnation, const LoadReport& load);
  // Books work on a worker until Finished takes it off again. `tokens` of prompt for prefill, of
  // context for decode.
  void Sent(const WorkerId& worker, bool prefill, uint64_t tokens);
  void Finished(const WorkerId& worker, bool prefill, uint64_t tokens);

  void RecordSuccess(const WorkerId& worker);
  // Only failures that speak against the worker: unreachable, internal, broken stream. Not refusals
  // for lack of room.
  void RecordFailure(const WorkerId& worker);

  // Null when unknown.
  const WorkerState* Find(const WorkerId& worker) const;
  // All workers in order of id; breakers are evaluated at the time of the call.
  std::vector<WorkerState> Workers() const;
  uint64_t version() const { return version_; }

 private:
  struct Breaker {
    std::vector<absl::Time> failures;
    absl::Time open_until = absl::InfinitePast();
    absl::Duration open_for;
    bool half_open = false;
  };
  struct Entry {
    WorkerState state;
    Breaker breaker;
  };
  const Clock& clock_;
  const BreakerOptions options_;
  uint64_t version_ = 0;
  absl::flat_hash_map<WorkerId, Entry> entries_;
};

}  // namespace sluice::cluster
