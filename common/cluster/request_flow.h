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
#include "base/fault.h"
#include "base/loop.h"
#include "cluster/directory.h"
#include "cluster/placement.h"
#include "cluster/poison_guard.h"
#include "cluster/retry_policy.h"
#include "cluster/worker_client.h"
#include "handoff/guards.h"
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
  // Shared by the sequences of one request.
  std::shared_ptr<Suspicion> suspicion = std::make_shared<Suspicion>();
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
  kNoWorker,    // RetryOptions::no_worker_wait_max
  kTooLate,     // the first token cannot come before the deadline, by measured rates
  kPoisoned,    // it was at two deaths of workers: see PoisonGuard
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
  std::vector<WorkerId> deaths;  // if kPoisoned
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
  // A dispatch before the first token: which numerics the stream has if it is this one's.
  virtual void OnPlaced(const PlacementDecision& decision, Id128 prefill_numerics,
                        Id128 decode_numerics) = 0;
  // The flow asks for no room any more: it has it, or there is no worker to ask. Before the first
  // token, maybe several times.
  virtual void OnSought() {}
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
  PoisonGuard& poison;
  handoff::Guards guards = {};
  FaultInjector* faults = nullptr;  // hit at every change of phase, which cannot be refused
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
  // The client reads too slowly: the sequence gives up its place and its pages until Resume, which
  // places it again, on the same numerics, at its next position. Both are idempotent and count as
  // no move.
  void Pause();
  void Resume();
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
    Incarnation prefill_incarnation;
    Incarnation decode_incarnation;
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
    absl::Time prompt_done = absl::InfinitePast();  // when its first token came
    // Tokens of the decode worker that overtook the first token of the prefill worker; fewer than
    // max_tokens.
    std::vector<std::pair<request::SampledToken, request::FinishReason>> early;
  };
  class PrefillListener;
  class DecodeListener;
  // Whether an event of this attempt's calls is of the one under way.
  bool IsCurrent(uint32_t attempt) const {
    return env_.guards.SameAttempt(attempt, attempt_.number);
  }

  RequestFlow(FlowEnvironment& environment, FlowSpec spec, FlowEvents& events);
  // For a call of the present attempt to that process.
  handoff::CallContext ContextFor(Incarnation worker) const;
  void PlaceAgain();
  // Workers to leave out because another request is on trial there, as this one is.
  std::vector<WorkerId> TakenWorkers() const;
  // Another request is on trial on a worker that was chosen for this one, which is on trial too.
  bool MustNotJoin(const PlacementDecision& decision) const;
  void OnPlacement(absl::StatusOr<PlacementDecision> decision);
  // The first token cannot come before the deadline.
  absl::Status CheckDeadline(const PlacementDecision& decision) const;
  void StartAttempt(PlacementDecision decision);
  void StartLocal();
  void OnCredit(uint32_t attempt, WorkerId worker, absl::StatusOr<LeaseId> credit);
  void ReservePages();
  void OnGrant(uint32_t attempt, WorkerId worker, absl::StatusOr<v1::Grant> grant);
  void StartSplit(v1::Grant grant);

  void OnPrefillStarted(uint32_t cached_tokens);
  void OnLocalStarted(uint32_t cached_tokens);
  void OnFirstToken(const request::SampledToken& token, request::FinishReason finish);
  void OnPrefillEnd(const absl::Status& status, const engine::SequenceStats& stats,
                    uint64_t transferred_bytes);
  void OnDecodeStarted(uint64_t moved_bytes);
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
  void WaitForWorkers(const absl::Status& status);
  void Book();
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
  absl::Time nobody_since_ = absl::InfiniteFuture();  // no usable worker was found
  bool avoids_trials_ = false;  // the placement under way leaves workers out for others on trial
  absl::Time phase_since_;
  absl::Time last_token_at_;
  uint32_t failures_ = 0;
  bool paused_ = false;
  bool died_prefilling_ = false;  // the last worker that died under it computed its prompt
  uint32_t placements_ = 0;       // numbers them: the answer to an earlier one is ignored
  TimerId deadline_timer_ = kNoTimer;
  TimerId step_timer_ = kNoTimer;
};

}  // namespace sluice::cluster
