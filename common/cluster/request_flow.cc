#include "cluster/request_flow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"

namespace sluice::cluster {

using request::FinishReason;
using request::Phase;
using request::SampledToken;

std::shared_ptr<RequestFlow> RequestFlow::Create(FlowEnvironment& environment, FlowSpec spec,
                                                 FlowEvents& events) {
  return std::shared_ptr<RequestFlow>(new RequestFlow(environment, std::move(spec), events));
}

RequestFlow::RequestFlow(FlowEnvironment& environment, FlowSpec spec, FlowEvents& events)
    : env_(environment),
      spec_(std::move(spec)),
      events_(events),
      prefill_numerics_(spec_.prefill_numerics),
      decode_numerics_(spec_.decode_numerics) {}

RequestFlow::~RequestFlow() {
  if (!IsTerminal(phase_)) DropAttempt();
}

void RequestFlow::Start() {
  env_.budget.OnRequest();
  phase_since_ = waiting_since_ = env_.loop.clock().Now();
  if (spec_.context.deadline != absl::InfiniteFuture()) {
    deadline_timer_ = env_.loop.RunAt(spec_.context.deadline, [weak = weak_from_this()] {
      if (auto flow = weak.lock()) {
        flow->deadline_timer_ = kNoTimer;
        flow->End(absl::DeadlineExceededError(absl::StrCat("the deadline passed in phase ",
                                                           PhaseName(flow->phase_), " after ",
                                                           flow->emitted_.size(), " tokens")));
      }
    });
  }
  PlaceAgain();
}

void RequestFlow::Finish(const absl::Status& status) { End(status); }

void RequestFlow::OnWorkerLost(const WorkerId& worker) {
  if (IsTerminal(phase_) || attempt_.number == 0) return;
  // The prefill worker is of no more use once the pages are verified and its token is here.
  const bool prefill_busy = phase_ < Phase::kPrefilling ||
                            attempt_.prefill_call.has_value();  // before: its credit is awaited
  const bool prefill_matters = prefill_busy && (!attempt_.prompt_ready || emitted_.empty());
  if (attempt_.decision.decode == worker ||
      (attempt_.decision.prefill == worker && prefill_matters)) {
    Fail(worker, absl::UnavailableError(absl::StrCat("worker ", worker.value(), " is gone")),
         MoveCause::kWorkerLost);
  }
}

void RequestFlow::PlaceAgain() {
  PlacementQuery query;
  query.model = spec_.model;
  query.prompt_tokens = static_cast<uint32_t>(spec_.prompt.size());
  query.emitted_tokens = tokens_emitted();
  query.output_tokens =
      spec_.sampling.max_tokens - std::min(spec_.sampling.max_tokens, tokens_emitted());
  query.excluded = excluded_;
  const std::vector<WorkerId> taken = TakenWorkers();
  query.excluded.insert(query.excluded.end(), taken.begin(), taken.end());
  avoids_trials_ = !taken.empty();
  query.broken_pairs = env_.directory.BrokenPairs();
  query.move_rates = env_.directory.MoveRates();
  query.affine_prefill = spec_.affine_prefill;
  query.affine_decode = spec_.affine_decode;
  // Until there is a token, nothing binds the stream to the numerics of an attempt that failed.
  query.prefill_numerics = emitted_.empty() ? spec_.prefill_numerics : prefill_numerics_;
  query.decode_numerics = emitted_.empty() ? spec_.decode_numerics : decode_numerics_;
  env_.place(query, spec_,
             [weak = weak_from_this(),
              number = ++placements_](absl::StatusOr<PlacementDecision> decision) {
               auto flow = weak.lock();
               if (flow != nullptr && flow->placements_ == number)
                 flow->OnPlacement(std::move(decision));
             });
}

void RequestFlow::OnPlacement(absl::StatusOr<PlacementDecision> decision) {
  if (IsTerminal(phase_)) return;
  if (!decision.ok()) {
    if (Classify(decision.status()) == FailureKind::kFinal) return End(decision.status());
    if (avoids_trials_) return WaitForRoom(decision.status());
    if (excluded_.empty()) return WaitForWorkers(decision.status());
    excluded_.clear();  // nobody else is left: those that failed get another chance
    return WaitForRoom(last_failure_.ok() ? decision.status() : last_failure_);
  }
  nobody_since_ = absl::InfiniteFuture();
  if (const absl::Status status = CheckDeadline(*decision); !status.ok())
    return GiveUp(GaveUp::kTooLate, status);
  // Two that are placed at the same time are not there for each other's placement.
  if (MustNotJoin(*decision)) return WaitForRoom(absl::UnavailableError("another one is tried"));
  StartAttempt(*std::move(decision));
}

absl::Status RequestFlow::CheckDeadline(const PlacementDecision& decision) const {
  // Rates are averages of other prompts, so what looks impossible by a factor of less than two is
  // tried.
  constexpr double kDoubt = 2;
  if (!emitted_.empty() || spec_.context.deadline == absl::InfiniteFuture())
    return absl::OkStatus();
  const absl::Duration left = spec_.context.deadline - env_.loop.clock().Now();
  const absl::Duration needed = absl::Milliseconds(decision.first_token_ms);
  if (needed <= kDoubt * left) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("the first token would take about ",
                   absl::FormatDuration(absl::Trunc(needed, absl::Milliseconds(1))),
                   " at the rate of the fastest worker; ",
                   absl::FormatDuration(absl::Trunc(left, absl::Milliseconds(1))), " are left"));
}

void RequestFlow::Pause() {
  if (IsTerminal(phase_) || std::exchange(paused_, true)) return;
  ++placements_;
  if (step_timer_ != kNoTimer) env_.loop.Cancel(std::exchange(step_timer_, kNoTimer));
  DropAttempt();
  SetPhase(Phase::kPlaced);
}

void RequestFlow::Resume() {
  if (IsTerminal(phase_) || !std::exchange(paused_, false)) return;
  waiting_since_ = env_.loop.clock().Now();
  nobody_since_ = absl::InfiniteFuture();
  PlaceAgain();
}

std::vector<WorkerId> RequestFlow::TakenWorkers() const {
  if (env_.loop.clock().Now() - waiting_since_ >= env_.retry.trial_wait_max) return {};
  std::vector<WorkerId> taken = env_.poison.Taken(*spec_.suspicion);
  // Whoever got over its prompt before is not tried where prompts are computed, and the reverse.
  const Role harmless = died_prefilling_ ? Role::kDecode : Role::kPrefill;
  std::erase_if(taken, [&](const WorkerId& id) {
    const WorkerState* worker = env_.directory.Find(id);
    return worker == nullptr || worker->description.role == harmless;
  });
  return taken;
}

bool RequestFlow::MustNotJoin(const PlacementDecision& decision) const {
  const std::vector<WorkerId> taken = TakenWorkers();
  return std::any_of(taken.begin(), taken.end(), [&](const WorkerId& worker) {
    return worker == decision.decode || (decision.split && worker == decision.prefill);
  });
}

void RequestFlow::OnPrefillStarted(uint32_t cached_tokens) {
  // What a later attempt finds cached was computed by an earlier one: only the first report is the
  // user's hit.
  if (summary_.attempts == 1) summary_.usage.cached_tokens = cached_tokens;
}

void RequestFlow::OnLocalStarted(uint32_t cached_tokens) {
  if (emitted_.empty()) events_.OnSought();
  OnPrefillStarted(cached_tokens);
}

void RequestFlow::OnFirstToken(const SampledToken& token, FinishReason finish) {
  if (!emitted_.empty()) {
    return Fail(attempt_.decision.prefill,
                absl::InternalError("the prefill worker sampled a token that the client has"));
  }
  attempt_.prompt_done = env_.loop.clock().Now();
  auto early = std::exchange(attempt_.early, {});
  Emit(token, finish);
  if (attempt_.decode_gave_up && !paused_ && !IsTerminal(phase_)) {
    return Fail(attempt_.decision.decode, absl::Status(*attempt_.decode_gave_up));
  }
  for (auto& [next, reason] : early) {
    if (IsTerminal(phase_) || paused_) return;  // what is left is computed again after the pause
    Emit(next, reason);
  }
}

void RequestFlow::OnPrefillEnd(const absl::Status& status, const engine::SequenceStats& stats,
                               uint64_t transferred_bytes) {
  attempt_.prefill_call.reset();
  Unbook(true);
  summary_.transferred_bytes += transferred_bytes;
  if (summary_.attempts > 1) summary_.usage.recomputed_tokens += stats.computed_tokens;
  if (attempt_.decode_gave_up)
    return Fail(attempt_.decision.decode, absl::Status(*attempt_.decode_gave_up));
  // Once the pages are verified elsewhere and the first token is here, the prefill worker has
  // nothing left to say.
  if (!status.ok() && (!attempt_.prompt_ready || emitted_.empty()))
    Fail(attempt_.decision.prefill, status);
}

void RequestFlow::OnDecodeStarted(uint64_t moved_bytes) {
  attempt_.prompt_ready = true;
  if (attempt_.decision.split) {
    const WorkerPair pair(attempt_.decision.prefill, attempt_.decision.decode);
    env_.directory.RecordPairSuccess(pair);
    // Of an attempt that sampled the first token: it came when the prompt was computed.
    if (attempt_.prompt_done != absl::InfinitePast())
      env_.directory.RecordMove(pair, moved_bytes, env_.loop.clock().Now() - attempt_.prompt_done);
  }
  if (attempt_.decision.split && phase_ < Phase::kVerified) {
    SetPhase(Phase::kTransferring);
    SetPhase(Phase::kVerified);
  }
  if (phase_ < Phase::kDecoding) SetPhase(Phase::kDecoding);
}

void RequestFlow::OnDecodeToken(uint32_t position, const SampledToken& token, FinishReason finish) {
  const uint32_t next = tokens_emitted() + static_cast<uint32_t>(attempt_.early.size());
  if (emitted_.empty() && attempt_.decision.split) {
    // The first token is still on its way from the prefill worker.
    if (position != next + 1) {
      return Fail(
          attempt_.decision.decode,
          absl::InternalError(absl::StrCat("token ", position, " where ", next + 1, " was due")));
    }
    // However late the first token is, what waits for it is bounded by what the client asked for.
    if (position >= spec_.sampling.max_tokens) {
      return Fail(attempt_.decision.decode,
                  absl::InternalError(absl::StrCat("token ", position, " of a stream of at most ",
                                                   spec_.sampling.max_tokens)));
    }
    attempt_.early.emplace_back(token, finish);
    return;
  }
  if (position != next && env_.guards.On(handoff::Guard::kAttemptAndPosition)) {
    return Fail(attempt_.decision.decode,
                absl::InternalError(absl::StrCat("token ", position, " where ", next, " was due")));
  }
  Emit(token, finish);
}

void RequestFlow::OnDecodeEnd(const absl::Status& status, const engine::SequenceStats& stats) {
  attempt_.decode_call.reset();
  attempt_.lease.reset();
  summary_.usage.recomputed_tokens += stats.recomputed_tokens;
  if (absl::IsAborted(status) && attempt_.prefill_call && emitted_.empty()) {
    attempt_.decode_gave_up = status;
    return;
  }
  if (!status.ok()) return Fail(attempt_.decision.decode, status);
  // Its last token may be waiting for the first one of the prefill worker.
  if (attempt_.early.empty())
    Fail(attempt_.decision.decode, absl::InternalError("the stream ended without a finish"));
}

void RequestFlow::Emit(const SampledToken& token, FinishReason finish) {
  const uint32_t position = tokens_emitted();
  MeasureToken();
  env_.poison.OnToken(*spec_.suspicion);
  emitted_.push_back(token.token);
  failures_ = 0;
  if (phase_ != Phase::kStreaming) SetPhase(Phase::kStreaming);
  events_.OnToken(position, token, finish);
  if (finish != FinishReason::kNone && !IsTerminal(phase_)) End(absl::OkStatus());
}

void RequestFlow::MeasureToken() {
  const absl::Time now = env_.loop.clock().Now();
  if (emitted_.empty()) {
    LeavePhase();
  } else if (emitted_.size() == 1 && attempt_.decision.split && summary_.moves.empty()) {
    const WorkerState* decode = env_.directory.Find(attempt_.decision.decode);
    const double step_ms = decode == nullptr ? 0 : decode->load.decode_step_ms;
    summary_.exposed =
        std::max(now - last_token_at_ - absl::Milliseconds(step_ms), absl::ZeroDuration());
  }
  for (FlowMove& move : summary_.moves) {
    if (move.migration && !move.gap.has_value()) move.gap = now - last_token_at_;
  }
  last_token_at_ = now;
}

void RequestFlow::Fail(const WorkerId& worker, const absl::Status& status, MoveCause cause) {
  if (IsTerminal(phase_)) return;
  const FailureKind kind = Classify(status);
  if (kind == FailureKind::kFinal) return End(status);
  last_failure_ = status;
  const Incarnation incarnation = worker == attempt_.decision.decode ? attempt_.decode_incarnation
                                                                     : attempt_.prefill_incarnation;
  const bool worker_gone = cause == MoveCause::kWorkerLost || IsConnectionBroken(status);
  if (worker_gone && !env_.directory.Drains(worker, incarnation)) {
    died_prefilling_ = attempt_.decision.split && worker == attempt_.decision.prefill;
    // Before this request leaves: all that are there saw it.
    env_.poison.OnDeath(worker, incarnation);
    env_.directory.ConnectionBroke(worker, incarnation);
  }
  const uint32_t attempt = attempt_.number;
  const bool began = attempt_.prompt_ready;
  DropAttempt();
  if (kind == FailureKind::kNoRoom && (emitted_.empty() || !began)) {
    --summary_.attempts;  // a refusal costs nothing
    return WaitForRoom(status);
  }
  SLUICE_LOG(kInfo) << "attempt failed" << Field("request", spec_.context.request)
                    << Field("attempt", attempt) << Field("worker", worker)
                    << Field("tokens", emitted_.size()) << Field("status", status.ToString());
  if (kind == FailureKind::kSuspect) env_.directory.RecordFailure(worker);
  // Either of them may get on well with others.
  if (attempt_.decision.split && !began &&
      (absl::IsAborted(status) || absl::IsFailedPrecondition(status))) {
    env_.directory.RecordPairFailure({attempt_.decision.prefill, attempt_.decision.decode});
  }
  // A second failure in a row that speaks against nobody may be the pair's: try another worker.
  if (kind == FailureKind::kSuspect || failures_ > 0) excluded_.push_back(worker);
  ++failures_;
  if (spec_.suspicion->poisoned()) {
    summary_.deaths = spec_.suspicion->deaths();
    return GiveUp(GaveUp::kPoisoned, status);
  }
  if (emitted_.empty()) {
    if (summary_.attempts >= env_.retry.attempts_max) return GiveUp(GaveUp::kAttempts, status);
    // The budget is against overload, where retries are load for workers that live. One that is
    // gone takes none: each of its requests comes back once, and whoever sees a second worker die
    // is suspected of it.
    if (!worker_gone && !env_.budget.Take()) return GiveUp(GaveUp::kBudget, status);
  } else {
    if (summary_.migrations >= env_.retry.migrations_max)
      return GiveUp(GaveUp::kMigrations, status);
    ++summary_.migrations;
  }
  summary_.moves.push_back({cause, /*migration=*/!emitted_.empty(), std::nullopt});
  SetPhase(Phase::kPlaced);
  waiting_since_ = env_.loop.clock().Now();
  RunAfter(failures_ == 1 ? absl::ZeroDuration() : Backoff(env_.retry, failures_, env_.random),
           &RequestFlow::PlaceAgain);
}

void RequestFlow::WaitForRoom(const absl::Status& status) {
  if (env_.loop.clock().Now() - waiting_since_ >= env_.retry.queue_wait_max) {
    return GiveUp(GaveUp::kWait, status);
  }
  RunAfter(Backoff(env_.retry, 0, env_.random), &RequestFlow::PlaceAgain);
}

void RequestFlow::WaitForWorkers(const absl::Status& status) {
  const absl::Time now = env_.loop.clock().Now();
  nobody_since_ = std::min(nobody_since_, now);
  if (now - nobody_since_ >= env_.retry.no_worker_wait_max) {
    return GiveUp(GaveUp::kNoWorker, status);
  }
  if (emitted_.empty()) events_.OnSought();
  RunAfter(Backoff(env_.retry, 0, env_.random), &RequestFlow::PlaceAgain);
}

void RequestFlow::DropAttempt() {
  // Resetting first makes callbacks deaf: what the dropped calls still say is of no interest, and a
  // lost worker fails an attempt once.
  attempt_.number = 0;
  const auto prefill_call = std::exchange(attempt_.prefill_call, std::nullopt);
  const auto decode_call = std::exchange(attempt_.decode_call, std::nullopt);
  const auto credit = std::exchange(attempt_.credit, std::nullopt);
  const auto lease = std::exchange(attempt_.lease, std::nullopt);
  attempt_.early.clear();
  if (prefill_call) env_.client.CancelCall(*prefill_call);
  if (decode_call) env_.client.CancelCall(*decode_call);
  if (credit) env_.client.ReturnCredit(attempt_.decision.prefill, *credit);
  if (lease) env_.client.Release(attempt_.decision.decode, *lease);
  Unbook(true);
  Unbook(false);
}

void RequestFlow::Book() {
  attempt_.prefill_booked = attempt_.decision.split;
  attempt_.decode_booked = true;
  if (attempt_.decision.split) {
    env_.directory.Sent(attempt_.decision.prefill, true, spec_.prompt.size());
    env_.poison.Enter(spec_.suspicion, attempt_.decision.prefill, attempt_.prefill_incarnation);
  }
  env_.directory.Sent(attempt_.decision.decode, false, spec_.prompt.size());
  env_.poison.Enter(spec_.suspicion, attempt_.decision.decode, attempt_.decode_incarnation);
}

void RequestFlow::Unbook(bool prefill) {
  if (!std::exchange(prefill ? attempt_.prefill_booked : attempt_.decode_booked, false)) return;
  const WorkerId& worker = prefill ? attempt_.decision.prefill : attempt_.decision.decode;
  env_.directory.Finished(worker, prefill, spec_.prompt.size());
  env_.poison.Leave(spec_.suspicion, worker,
                    prefill ? attempt_.prefill_incarnation : attempt_.decode_incarnation);
}

void RequestFlow::GiveUp(GaveUp why, const absl::Status& last_failure) {
  summary_.gave_up = why;
  End(last_failure);
}

void RequestFlow::End(const absl::Status& status) {
  if (IsTerminal(phase_)) return;
  const auto keep_alive = shared_from_this();
  DropAttempt();
  if (deadline_timer_ != kNoTimer) env_.loop.Cancel(std::exchange(deadline_timer_, kNoTimer));
  if (step_timer_ != kNoTimer) env_.loop.Cancel(std::exchange(step_timer_, kNoTimer));
  if (status.ok()) {
    env_.directory.RecordSuccess(attempt_.decision.decode);
    if (attempt_.decision.split) env_.directory.RecordSuccess(attempt_.decision.prefill);
  }
  SetPhase(status.ok()                 ? Phase::kDone
           : absl::IsCancelled(status) ? Phase::kCancelled
                                       : Phase::kFailed);
  summary_.usage.prompt_tokens = static_cast<uint32_t>(spec_.prompt.size());
  summary_.usage.completion_tokens = tokens_emitted();
  summary_.workers_tried = static_cast<uint32_t>(tried_.size());
  events_.OnDone(status, summary_);
}

void RequestFlow::SetPhase(Phase phase) {
  SLUICE_DCHECK(phase == phase_ || MayFollow(phase_, phase))
      << PhaseName(phase_) << " -> " << PhaseName(phase);
  if (phase != phase_)
    SLUICE_FAULT(env_.faults, request::kPhaseMachine.PointOf(phase_, phase)).IgnoreError();
  if (emitted_.empty()) LeavePhase();
  phase_ = phase;
}

void RequestFlow::LeavePhase() {
  const absl::Time now = env_.loop.clock().Now();
  summary_.until_first_token[static_cast<size_t>(std::min(phase_, Phase::kPrefilling))] +=
      now - phase_since_;
  phase_since_ = now;
}

void RequestFlow::RunAfter(absl::Duration delay, void (RequestFlow::*step)()) {
  step_timer_ = env_.loop.RunAt(env_.loop.clock().Now() + delay, [weak = weak_from_this(), step] {
    if (auto flow = weak.lock()) {
      flow->step_timer_ = kNoTimer;
      if (!IsTerminal(flow->phase_)) (flow.get()->*step)();
    }
  });
}

}  // namespace sluice::cluster
