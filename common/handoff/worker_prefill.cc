// Prefill calls: compute, hand the pages to the source, end when the taker has them.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "handoff/worker_impl.h"

namespace sluice::handoff {

// Move loop.
void WorkerImpl::OpenSource(CallId id, const v1::Grant& grant, uint32_t prompt_tokens) {
  LeaseId lease;
  const bool named = ParseLease(grant.lease_id(), &lease);
  absl::Status status;
  if (named && !source_calls_.try_emplace(lease, id).second) {
    status = absl::AlreadyExistsError("another call serves this lease");
  } else {
    status = source_->Open(grant, prompt_tokens);  // counts what it refuses
    if (named && !status.ok()) source_calls_.erase(lease);
  }
  if (status.ok()) return;
  engine_mail_.Push([this, id, status = Unshared(status)] { SourceEnded(id, status, 0); });
}

// Move loop.
bool WorkerImpl::Serves(CallId id, LeaseId lease) const {
  const auto found = source_calls_.find(lease);
  return found != source_calls_.end() && found->second == id;
}

// Move loop.
void WorkerImpl::OnSourceEnded(LeaseId lease, const absl::Status& status, uint64_t bytes) {
  const auto found = source_calls_.find(lease);
  SLUICE_CHECK(found != source_calls_.end());
  const CallId id = found->second;
  source_calls_.erase(found);
  engine_mail_.Push(
      [this, id, status = Unshared(status), bytes] { SourceEnded(id, status, bytes); });
}

void WorkerImpl::StartPrefill(CallId id, PrefillCall call, LeaseId credit,
                              std::unique_ptr<PrefillEvents> events) {
  PrefillState& state = prefills_[id];
  state.id = id;
  state.events = std::move(events);
  state.credit = credit;
  state.prompt_tokens = static_cast<uint32_t>(call.prompt.size());
  if (!call.grant.lease_id().empty()) {
    LeaseId lease;  // stays 0 where the grant's is malformed, which the source refuses
    ParseLease(call.grant.lease_id(), &lease);
    state.lease = lease;
  }

  engine::SequenceSpec spec;
  spec.id = SequenceId(id.value());
  spec.request = call.context.request;
  spec.tenant = call.context.tenant;
  spec.priority = call.context.priority;
  spec.weight = call.context.weight;
  spec.kind = engine::SequenceKind::kPrefill;
  spec.prompt = std::move(call.prompt);
  spec.emitted = std::move(call.emitted);
  spec.sampling = std::move(call.sampling);
  spec.deadline = call.context.deadline;
  spec.domain = std::move(call.context.domain);
  spec.held_blocks = call.grant.held().blocks();
  spec.offer_pages = !call.grant.lease_id().empty();
  absl::Status status = prefills_.size() + decodes_.size() > options_.calls_max
                            ? absl::ResourceExhaustedError(
                                  absl::StrCat("all ", options_.calls_max, " calls are in use"))
                            : SLUICE_FAULT(deps_.faults, "worker.prefill_started");
  if (status.ok()) status = CheckMeant(call.context);
  if (status.ok() && state.lease.has_value()) {
    // Before the engine can offer anything, and not before the call is known here, which hears when
    // the grant is refused: mail keeps its order.
    move_mail_.Push([this, id, grant = std::move(call.grant), tokens = state.prompt_tokens] {
      OpenSource(id, grant, tokens);
    });
  }
  if (status.ok()) status = engine_->Submit(std::move(spec));
  if (!status.ok()) return AbandonPrefill(state, status);
  state.in_engine = true;
  ArmDeadline(state, call.context.deadline);
  ScheduleStep();
}

void WorkerImpl::WithdrawSource(PrefillState& state, absl::string_view reason) {
  if (!state.lease.has_value()) return;
  move_mail_.Push([this, id = state.id, lease = *state.lease, reason = std::string(reason)] {
    if (!Serves(id, lease)) return;
    source_calls_.erase(lease);
    source_->Withdraw(lease, reason);
  });
  state.lease.reset();
}

void WorkerImpl::OnPagesFinal(SequenceId sequence, std::vector<engine::FinalPage> pages,
                              int layer_begin, int layer_end) {
  PrefillState* state = FindPrefill(sequence);
  if (state == nullptr || !state->lease.has_value()) return;
  move_mail_.Push([this, id = state->id, lease = *state->lease, pages = std::move(pages),
                   layer_begin, layer_end]() mutable {
    if (Serves(id, lease)) source_->Offer(lease, std::move(pages), layer_begin, layer_end);
  });
}

void WorkerImpl::OnPromptDone(SequenceId sequence,
                              const std::optional<request::SampledToken>& first,
                              request::FinishReason finish) {
  PrefillState* state = FindPrefill(sequence);
  SLUICE_CHECK(state != nullptr);
  const absl::Status fault = SLUICE_FAULT(deps_.faults, "worker.first_token");
  if (!fault.ok()) return EndAfterStep(state->id, fault);
  if (first.has_value()) state->events->OnFirstToken(*first, finish);
  if (!state->lease.has_value()) return;
  if (finish != request::FinishReason::kNone)
    return WithdrawSource(*state, "the stream ended with its first token");
  state->committed = true;
  move_mail_.Push([this, id = state->id, lease = *state->lease, tokens = state->prompt_tokens,
                   first, cached = state->cached_tokens] {
    if (Serves(id, lease)) source_->Commit(lease, tokens, first, cached);
  });
}

void WorkerImpl::PrefillFinished(PrefillState& state, const absl::Status& status) {
  credits_.Return(state.credit);
  const CallId id = state.id;
  if (!status.ok() || state.verdict.has_value()) {
    WithdrawSource(state, status.message());
    return EndPrefill(id, state.verdict.value_or(status), 0);
  }
  if (state.source_end.has_value())
    return EndPrefill(id, state.source_end->first, state.source_end->second);
  if (!state.committed) EndPrefill(id, absl::OkStatus(), 0);  // nothing is moved
}

void WorkerImpl::SourceEnded(CallId id, const absl::Status& status, uint64_t bytes) {
  PrefillState* state = FindPrefill(SequenceId(id.value()));
  if (state == nullptr || !state->lease.has_value()) return;
  state->lease.reset();
  state->source_end = {status, bytes};
  if (!state->in_engine) return EndPrefill(id, status, bytes);
  if (!status.ok()) CancelInEngine(*state, status);
}

void WorkerImpl::AbandonPrefill(PrefillState& state, const absl::Status& why) {
  WithdrawSource(state, why.message());
  if (state.in_engine) return CancelInEngine(state, why);
  credits_.Return(state.credit);
  EndPrefill(state.id, why, 0);
}

void WorkerImpl::EndPrefill(CallId id, const absl::Status& status, uint64_t bytes) {
  const auto found = prefills_.find(id);
  const PrefillState state = std::move(found->second);
  prefills_.erase(found);
  deps_.engine_loop.Cancel(state.deadline_timer);
  state.events->OnEnd(status, state.stats, bytes);
}

}  // namespace sluice::handoff
