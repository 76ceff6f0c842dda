// The way of one sequence through the cluster: place, admit, reserve, prefill, decode, and again
// elsewhere when something fails. A state machine without I/O of its own; it runs unchanged in the
// router and in the simulation.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/loop.h"
#include "cluster/directory.h"
#include "cluster/placement.h"
#include "cluster/retry_policy.h"
#include "cluster/worker_client.h"
#include "kv/block_key.h"
#include "request/phase.h"
#include "request/sampling.h"

namespace sluice::cluster {

struct FlowSpec {
  handoff::CallContext context;  // attempt is set by the flow
  std::string model;
  std::vector<request::TokenId> prompt;
  // For whoever places; shared by the sequences of one prompt, on one loop.
  std::shared_ptr<kv::PromptKeys> keys = std::make_shared<kv::PromptKeys>();
  request::SamplingParams sampling;
  WorkerId affine_prefill;
  WorkerId affine_decode;
  // Set by a resume: only workers of these numerics may serve. Zero: any.
  Id128 prefill_numerics;
  Id128 decode_numerics;
};

// Why a request that was in order was given up: what was used up.
enum class GaveUp {
  kNo,
  kAttempts,    // RetryOptions::attempts_max
  kBudget,      // the router's retry budget
  kMigrations,  // RetryOptions::migrations_max
  kWait,        // RetryOptions::queue_wait_max
};

// One change of workers.
struct FlowMove {
  MoveCause cause;
  bool migration = false;  // after the first token; else a retry
  std::optional<absl::Duration>
      gap;  // of a migration: from the last token before it to the first one after it
};

struct FlowSummary {
  request::Usage usage;
  uint32_t attempts = 0;
  uint32_t migrations = 0;
  uint32_t workers_tried = 0;  // different ones, of either role
  GaveUp gave_up = GaveUp::kNo;
  bool split = false;
  WorkerId prefill;
  WorkerId decode;
  uint64_t transferred_bytes = 0;
  uint32_t predicted_cached_tokens = 0;
  std::vector<FlowMove> moves;  // at most attempts_max + migrations_max
  // Time until the first token: in ADMITTED, PLACED and RESERVED, and from PREFILLING on.
  std::array<absl::Duration, 4> until_first_token;
  // Split and never moved: the gap between token 1 and 2 beyond one step of the decode worker.
  std::optional<absl::Duration> exposed;
};

// Called on the flow's loop. Start calls none of them. Finish and OnWorkerLost may call OnDone
// before they return, so their caller must be ready for it; OnToken may itself call Finish.
class FlowEvents {
 public:
  virtual ~FlowEvents() = default;
  // The first dispatch: which numerics the stream has from here on.
  virtual void OnPlaced(const PlacementDecision& decision, Id128 prefill_numerics,
                        Id128 decode_numerics) = 0;
  // Positions are consecutive from 0 whatever happened behind; the last token carries the finish
  // reason.
  virtual void OnToken(uint32_t position, const request::SampledToken& token,
                       request::FinishReason finish) = 0;
  // Exactly once, last. OK only after a token with a finish reason. When the summary says that the
  // flow gave up, `status` is the last failure as a worker or its connection reported it.
  virtual void OnDone(const absl::Status& status, const FlowSummary& summary) = 0;
};

// Places one query; production asks the cache-manager first. `done` runs on the loop, later.
using PlaceFunction =
    absl::AnyInvocable<void(const PlacementQuery& query, const FlowSpec& spec,
                            absl::AnyInvocable<void(absl::StatusOr<PlacementDecision>)> done)>;

// What all flows of a router share. Everything must outlive the flows.
struct FlowEnvironment {
  Loop& loop;
  WorkerClient& client;
  Directory& directory;
  RandomSource& random;
  RetryBudget& budget;
  RetryOptions retry;
  PlaceFunction place;
};

// Owned by the environment's loop. Held by shared_ptr, because calls under way refer to it weakly.
class RequestFlow : public std::enable_shared_from_this<RequestFlow> {
 public:
  // `events` must outlive the flow's OnDone.
  static std::shared_ptr<RequestFlow> Create(FlowEnvironment& environment, FlowSpec spec,
                                             FlowEvents& events);
  ~RequestFlow();

  void Start();
  // The client left (CANCELLED) or its stop string matched (OK). OnDone has come with `status` on
  // return, unless it came before.
  void Finish(const absl::Status& status);
  // The named worker is gone: what runs there fails now rather than when its streams notice. OnDone
  // may come before this returns.
  void OnWorkerLost(const WorkerId& worker);

  request::Phase phase() const { return phase_; }
  uint32_t tokens_emitted() const { return static_cast<uint32_t>(emitted_.size()); }

 private:
  // One dispatch. Callbacks of an earlier one find another number and only clean up.
  struct Attempt {
    uint32_t number = 0;  // 0: none is under way
    PlacementDecision decision;
    std::optional<LeaseId> credit;
    std::optional<LeaseId> lease;
    std::optional<handoff::CallId> prefill_call;
    std::optional<handoff::CallId> decode_call;
    bool prefill_booked = false;
    bool decode_booked = false;
    // The decode worker gave up before the first token was here: either the prefill worker withdrew
    // because the stream ends with that token, or the attempt has failed. What the prefill worker
    // says next decides.
    std::optional<absl::Status> decode_gave_up;
    bool prompt_ready = false;  // pages verified, or being computed where they are decoded
    // Tokens of the decode worker that overtook the first token of the prefill worker; fewer than
    // max_tokens.
    std::vector<std::pair<request::SampledToken, request::FinishReason>> early;
  };
  class PrefillListener;
  class DecodeListener;

  RequestFlow(FlowEnvironment& environment, FlowSpec spec, FlowEvents& events);
  void PlaceAgain();
  void OnPlacement(absl::StatusOr<PlacementDecision> decision);
  void StartAttempt(PlacementDecision decision);
  void StartLocal();
  void OnCredit(uint32_t attempt, WorkerId worker, absl::StatusOr<LeaseId> credit);
  void ReservePages();
  void OnGrant(uint32_t attempt, WorkerId worker, absl::StatusOr<v1::Grant> grant);
  void StartSplit(v1::Grant grant);

  void OnPrefillStarted(uint32_t cached_tokens);
  void OnFirstToken(const request::SampledToken& token, request::FinishReason finish);
  void OnPrefillEnd(const absl::Status& status, const engine::SequenceStats& stats,
                    uint64_t transferred_bytes);
  void OnDecodeStarted();
  void OnDecodeToken(uint32_t position, const request::SampledToken& token,
                     request::FinishReason finish);
  void OnDecodeEnd(const absl::Status& status, const engine::SequenceStats& stats);

  void Emit(const request::SampledToken& token, request::FinishReason finish);
  // What an emitted token says about waiting: before it counts as emitted.
  void MeasureToken();
  void Fail(const WorkerId& worker, const absl::Status& status) {
    Fail(worker, status, MoveCauseOf(status));
  }
  void Fail(const WorkerId& worker, const absl::Status& status, MoveCause cause);
  void WaitForRoom(const absl::Status& status);
  void Unbook(bool prefill);
  void DropAttempt();
  void GiveUp(GaveUp why, const absl::Status& last_failure);
  void End(const absl::Status& status);
  void SetPhase(request::Phase phase);
  // Books the time in the present phase, before the first token.
  void LeavePhase();
  void RunAfter(absl::Duration delay, void (RequestFlow::*step)());

  FlowEnvironment& env_;
  const FlowSpec spec_;
  FlowEvents& events_;
  request::Phase phase_ = request::Phase::kAdmitted;
  Attempt attempt_;
  std::vector<request::TokenId> emitted_;
  std::vector<WorkerId> excluded_;
  absl::flat_hash_set<WorkerId> tried_;
  Id128 prefill_numerics_;
  Id128 decode_numerics_;
  FlowSummary summary_;
  uint32_t dispatches_ =
      0;  // numbers attempts; unlike summary_.attempts it counts refused ones too
  absl::Status last_failure_;
  absl::Time waiting_since_ = absl::InfiniteFuture();
  absl::Time phase_since_;
  absl::Time last_token_at_;
  uint32_t failures_ = 0;
  bool announced_ = false;
  TimerId deadline_timer_ = kNoTimer;
  TimerId step_timer_ = kNoTimer;
};

}  // namespace sluice::cluster
