// Decode calls: wait for the pages (or compute the prompt here), then stream. And the engine's
// events that both kinds share.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "handoff/worker_impl.h"

namespace sluice::handoff {

void WorkerImpl::StartDecode(CallId id, DecodeCall call, std::unique_ptr<DecodeEvents> events) {
  DecodeState& state = decodes_[id];
  state.id = id;
  state.events = std::move(events);
  state.call = std::move(call);
  if (prefills_.size() + decodes_.size() > options_.calls_max) {
    return AbandonDecode(state, absl::ResourceExhaustedError(
                                    absl::StrCat("all ", options_.calls_max, " calls are in use")));
  }
  const absl::Status meant = CheckMeant(state.call.context);
  if (!meant.ok()) return AbandonDecode(state, meant);
  ArmDeadline(state, state.call.context.deadline);
  if (state.call.lease.has_value()) return;  // Landed follows
  const absl::Status status = SubmitLocal(state);
  if (!status.ok()) EndDecode(id, status);
}

absl::Status WorkerImpl::SubmitLocal(DecodeState& state) {
  engine::SequenceSpec spec;
  spec.id = SequenceId(state.id.value());
  spec.request = state.call.context.request;
  spec.tenant = state.call.context.tenant;
  spec.priority = state.call.context.priority;
  spec.weight = state.call.context.weight;
  spec.kind = engine::SequenceKind::kLocal;
  spec.prompt = std::move(state.call.prompt);
  spec.emitted = std::move(state.call.emitted);
  spec.sampling = state.call.sampling;
  spec.deadline = state.call.context.deadline;
  spec.domain = state.call.context.domain;
  absl::Status status = SLUICE_FAULT(deps_.faults, "worker.decode_started");
  if (status.ok()) status = engine_->Submit(std::move(spec));
  if (!status.ok()) return status;
  state.in_engine = true;
  ScheduleStep();
  return absl::OkStatus();
}

void WorkerImpl::Landed(CallId id, absl::StatusOr<LandedSequence> landed) {
  DecodeState* state = FindDecode(SequenceId(id.value()));
  if (state == nullptr) return;  // cancelled; the pages go back with the message
  state->landed = true;
  const absl::Status status =
      landed.ok() ? SubmitLanded(*state, *std::move(landed)) : landed.status();
  if (!status.ok()) EndDecode(id, status);
}

absl::Status WorkerImpl::SubmitLanded(DecodeState& state, LandedSequence landed) {
  const DecodeCall& call = state.call;
  if (!options_.guards.SameAttempt(call.context.attempt, landed.context.attempt)) {
    return absl::FailedPreconditionError(absl::StrCat("call of attempt ", call.context.attempt,
                                                      " for a lease of attempt ",
                                                      landed.context.attempt));
  }
  if (landed.first.has_value() != call.emitted.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the holder sampled ", landed.first.has_value() ? "a" : "no",
                     " first token, and the call brings ", call.emitted.size()));
  }
  engine::SequenceSpec spec;
  spec.id = SequenceId(state.id.value());
  spec.request = call.context.request;
  spec.tenant = landed.context.tenant;
  spec.priority = call.context.priority;
  spec.weight = call.context.weight;
  spec.kind = engine::SequenceKind::kDecode;
  spec.prompt = std::move(landed.prompt);
  spec.emitted = call.emitted;
  if (landed.first.has_value()) spec.emitted.push_back(landed.first->token);
  spec.sampling = call.sampling;
  spec.deadline = call.context.deadline;
  // Blocks made by other numerics must not be found under this worker's keys.
  if (landed.same_numerics) spec.domain = landed.context.domain;
  spec.own_numerics = landed.same_numerics;
  spec.pages = std::move(landed.pages);
  absl::Status status = SLUICE_FAULT(deps_.faults, "worker.decode_started");
  if (status.ok()) status = engine_->Submit(std::move(spec));
  if (!status.ok()) return status;
  state.in_engine = true;
  if (landed.bytes > 0) state.events->OnLanded(landed.transfer);
  state.events->OnStarted(landed.held_tokens, landed.bytes, deps_.transport.capabilities().name);
  ScheduleStep();
  return absl::OkStatus();
}

void WorkerImpl::AbandonDecode(DecodeState& state, const absl::Status& why) {
  if (state.in_engine) return CancelInEngine(state, why);
  if (state.call.lease.has_value() && !state.landed) {
    move_mail_.Push([this, lease = *state.call.lease, reason = std::string(why.message())] {
      taker_->Release(lease, reason);
    });
  }
  EndDecode(state.id, why);
}

void WorkerImpl::EndDecode(CallId id, const absl::Status& status) {
  const auto found = decodes_.find(id);
  const DecodeState state = std::move(found->second);
  decodes_.erase(found);
  deps_.engine_loop.Cancel(state.deadline_timer);
  state.events->OnEnd(status, state.stats);
}

void WorkerImpl::OnStarted(SequenceId sequence, uint32_t cached_tokens) {
  if (PrefillState* prefill = FindPrefill(sequence)) {
    prefill->cached_tokens = cached_tokens;
    credits_.PagesTaken(prefill->credit);
    prefill->events->OnStarted(cached_tokens);
  } else if (DecodeState* decode = FindDecode(sequence); decode != nullptr && !decode->landed) {
    decode->events->OnStarted(cached_tokens, 0, "");
  }
}

void WorkerImpl::OnToken(SequenceId sequence, uint32_t position, const request::SampledToken& token,
                         request::FinishReason finish) {
  DecodeState* state = FindDecode(sequence);
  SLUICE_CHECK(state != nullptr);
  if (state->verdict.has_value()) return;
  const absl::Status fault = SLUICE_FAULT(deps_.faults, "worker.token");
  if (!fault.ok()) return EndAfterStep(state->id, fault);
  state->events->OnToken(position, token, finish);
}

void WorkerImpl::OnFinished(SequenceId sequence, const absl::Status& status,
                            const engine::SequenceStats& stats) {
  if (PrefillState* prefill = FindPrefill(sequence)) {
    prefill->in_engine = false;
    prefill->stats = stats;
    PrefillFinished(*prefill, status);
  } else if (DecodeState* decode = FindDecode(sequence)) {
    decode->in_engine = false;
    decode->stats = stats;
    EndDecode(decode->id, decode->verdict.value_or(status));
  }
}

void WorkerImpl::EndAfterStep(CallId id, const absl::Status& why) {
  const SequenceId sequence(id.value());
  if (PrefillState* prefill = FindPrefill(sequence)) prefill->verdict = why;
  if (DecodeState* decode = FindDecode(sequence)) decode->verdict = why;
  engine_mail_.Push([this, id, why] { DoCancel(id, why); });
}

}  // namespace sluice::handoff
