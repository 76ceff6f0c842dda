// How one attempt of a flow is sent out: credit, reservation, calls, and the way back of their
// events.
#include <utility>

#include "cluster/request_flow.h"

namespace sluice::cluster {

using request::FinishReason;
using request::Phase;
using request::SampledToken;

// Forwards events of one attempt; those of a flow or attempt that is over go nowhere.
class RequestFlow::PrefillListener final : public handoff::PrefillEvents {
 public:
  PrefillListener(std::weak_ptr<RequestFlow> flow, uint32_t attempt)
      : flow_(std::move(flow)), attempt_(attempt) {}
  void OnStarted(uint32_t cached_tokens) override {
    if (auto flow = Live()) flow->OnPrefillStarted(cached_tokens);
  }
  void OnFirstToken(const SampledToken& token, FinishReason finish) override {
    if (auto flow = Live()) flow->OnFirstToken(token, finish);
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats,
             uint64_t transferred_bytes) override {
    if (auto flow = Live()) flow->OnPrefillEnd(status, stats, transferred_bytes);
  }

 private:
  std::shared_ptr<RequestFlow> Live() const {
    auto flow = flow_.lock();
    return flow != nullptr && flow->IsCurrent(attempt_) && flow->attempt_.prefill_call ? flow
                                                                                       : nullptr;
  }
  const std::weak_ptr<RequestFlow> flow_;
  const uint32_t attempt_;
};

class RequestFlow::DecodeListener final : public handoff::DecodeEvents {
 public:
  DecodeListener(std::weak_ptr<RequestFlow> flow, uint32_t attempt)
      : flow_(std::move(flow)), attempt_(attempt) {}
  void OnStarted(uint32_t held_tokens, uint64_t transferred_bytes,
                 absl::string_view /*transport*/) override {
    if (auto flow = Live()) {
      if (!flow->attempt_.decision.split) flow->OnLocalStarted(held_tokens);
      flow->OnDecodeStarted(transferred_bytes);
    }
  }
  void OnToken(uint32_t position, const SampledToken& token, FinishReason finish) override {
    if (auto flow = Live()) flow->OnDecodeToken(position, token, finish);
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats) override {
    if (auto flow = Live()) flow->OnDecodeEnd(status, stats);
  }

 private:
  std::shared_ptr<RequestFlow> Live() const {
    auto flow = flow_.lock();
    return flow != nullptr && flow->IsCurrent(attempt_) && flow->attempt_.decode_call ? flow
                                                                                      : nullptr;
  }
  const std::weak_ptr<RequestFlow> flow_;
  const uint32_t attempt_;
};

void RequestFlow::StartAttempt(PlacementDecision decision) {
  const WorkerState* decode = env_.directory.Find(decision.decode);
  const WorkerState* prefill = decision.split ? env_.directory.Find(decision.prefill) : decode;
  if (decode == nullptr || prefill == nullptr)
    return WaitForRoom(absl::UnavailableError("the placed worker left"));
  SetPhase(Phase::kPlaced);
  attempt_ = Attempt();
  attempt_.number = ++dispatches_;
  ++summary_.attempts;
  attempt_.decision = std::move(decision);
  tried_.insert(attempt_.decision.decode);
  if (attempt_.decision.split) tried_.insert(attempt_.decision.prefill);
  summary_.split = attempt_.decision.split;
  summary_.prefill = attempt_.decision.prefill;
  summary_.decode = attempt_.decision.decode;
  if (emitted_.empty()) {
    prefill_numerics_ = prefill->description.numerics_id;
    decode_numerics_ = decode->description.numerics_id;
    summary_.predicted_cached_tokens = attempt_.decision.predicted_cached_tokens;
    events_.OnPlaced(attempt_.decision, prefill_numerics_, decode_numerics_);
  }
  attempt_.prefill_incarnation = prefill->description.incarnation;
  attempt_.decode_incarnation = decode->description.incarnation;
  Book();
  if (!attempt_.decision.split) return StartLocal();

  const WorkerId worker = attempt_.decision.prefill;
  env_.client.Admit(worker, spec_.context, static_cast<uint32_t>(spec_.prompt.size()),
                    [weak = weak_from_this(), number = attempt_.number, worker,
                     client = &env_.client](absl::StatusOr<LeaseId> credit) {
                      if (auto flow = weak.lock()) {
                        flow->OnCredit(number, worker, std::move(credit));
                      } else if (credit.ok()) {
                        client->ReturnCredit(worker, *credit);
                      }
                    });
}

handoff::CallContext RequestFlow::ContextFor(Incarnation worker) const {
  handoff::CallContext context = spec_.context;
  context.attempt = attempt_.number;
  context.worker = worker;
  return context;
}

void RequestFlow::StartLocal() {
  handoff::DecodeCall call;
  call.context = ContextFor(attempt_.decode_incarnation);
  call.prompt = spec_.prompt;
  call.emitted = emitted_;
  call.sampling = spec_.sampling;
  SetPhase(Phase::kPrefilling);
  attempt_.decode_call =
      env_.client.StartDecode(attempt_.decision.decode, std::move(call),
                              std::make_unique<DecodeListener>(weak_from_this(), attempt_.number));
}

void RequestFlow::OnCredit(uint32_t attempt, WorkerId worker, absl::StatusOr<LeaseId> credit) {
  if (IsTerminal(phase_) || attempt != attempt_.number) {
    if (credit.ok()) env_.client.ReturnCredit(worker, *credit);
    return;
  }
  if (!credit.ok()) return Fail(worker, credit.status());
  attempt_.credit = *credit;
  ReservePages();
}

void RequestFlow::ReservePages() {
  const WorkerState* holder = env_.directory.Find(attempt_.decision.prefill);
  if (holder == nullptr)
    return Fail(attempt_.decision.prefill, absl::UnavailableError("the prefill worker left"));
  handoff::ReserveCall call;
  call.context = ContextFor(attempt_.decode_incarnation);
  call.prompt = spec_.prompt;
  call.emitted_tokens = tokens_emitted();
  call.max_tokens = spec_.sampling.max_tokens;
  call.holder = holder->description.incarnation;
  call.holder_layout_hash = holder->description.layout_hash;
  call.holder_layout = holder->description.layout;
  call.holder_numerics_id = holder->description.numerics_id;
  const WorkerId worker = attempt_.decision.decode;
  env_.client.Reserve(worker, std::move(call),
                      [weak = weak_from_this(), number = attempt_.number, worker,
                       client = &env_.client](absl::StatusOr<v1::Grant> grant) {
                        if (auto flow = weak.lock()) {
                          flow->OnGrant(number, worker, std::move(grant));
                          return;
                        }
                        Id128 id;
                        if (grant.ok() && Id128::FromBytes(grant->lease_id(), &id))
                          client->Release(worker, LeaseId(id));
                      });
}

void RequestFlow::OnGrant(uint32_t attempt, WorkerId worker, absl::StatusOr<v1::Grant> grant) {
  Id128 id;
  const bool granted = grant.ok() && Id128::FromBytes(grant->lease_id(), &id);
  if (IsTerminal(phase_) || attempt != attempt_.number) {
    if (granted) env_.client.Release(worker, LeaseId(id));
    return;
  }
  if (!grant.ok()) return Fail(worker, grant.status());
  if (!granted)
    return Fail(worker,
                absl::InternalError("the decode worker returned a grant without a lease id"));
  SetPhase(Phase::kReserved);
  if (emitted_.empty()) events_.OnSought();
  attempt_.lease = LeaseId(id);
  StartSplit(*std::move(grant));
}

void RequestFlow::StartSplit(v1::Grant grant) {
  handoff::DecodeCall decode;
  decode.context = ContextFor(attempt_.decode_incarnation);
  decode.lease = attempt_.lease;
  decode.emitted = emitted_;
  decode.sampling = spec_.sampling;
  handoff::PrefillCall prefill;
  prefill.context = ContextFor(attempt_.prefill_incarnation);
  prefill.credit = *attempt_.credit;
  prefill.prompt = spec_.prompt;
  prefill.emitted = emitted_;
  prefill.sampling = spec_.sampling;
  prefill.grant = std::move(grant);
  SetPhase(Phase::kPrefilling);
  // From here on the calls own credit and reservation.
  attempt_.credit.reset();
  attempt_.decode_call =
      env_.client.StartDecode(attempt_.decision.decode, std::move(decode),
                              std::make_unique<DecodeListener>(weak_from_this(), attempt_.number));
  attempt_.prefill_call = env_.client.StartPrefill(
      attempt_.decision.prefill, std::move(prefill),
      std::make_unique<PrefillListener>(weak_from_this(), attempt_.number));
}

}  // namespace sluice::cluster
