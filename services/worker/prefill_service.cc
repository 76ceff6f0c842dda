#include "services/worker/prefill_service.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "request/sampling.h"
#include "rpc/domain.h"
#include "rpc/status_map.h"
#include "services/worker/stream_call.h"

namespace sluice::services {
namespace {

using Answer = StreamCall<v1::PrefillEvent>;

// Turns the events of one call into messages. Called by the worker, one event at a time.
class StreamEvents final : public handoff::PrefillEvents {
 public:
  StreamEvents(const WorkerFrame& frame, Answer answer)
      : frame_(frame), answer_(std::move(answer)), begun_(frame.clock.Now()) {}

  void OnStarted(uint32_t cached_tokens) override {
    v1::PrefillEvent event;
    event.mutable_started()->set_cached_tokens(cached_tokens);
    *event.mutable_started()->mutable_load() = rpc::ToProto(frame_.worker.load());
    answer_.Write(std::move(event));
  }

  void OnFirstToken(const request::SampledToken& token, request::FinishReason finish) override {
    SLUICE_FAULT_OF(frame_.faults, "prefill.first_token", answer_.request_id()).IgnoreError();
    frame_.metrics.TokenSampled();
    frame_.metrics.PhaseEnded(request::Phase::kPrefilling, frame_.clock.Now() - begun_);
    v1::PrefillEvent event;
    *event.mutable_first_token()->mutable_token() = rpc::ToProto(token);
    event.mutable_first_token()->set_finish_reason(std::string(request::FinishReasonName(finish)));
    answer_.Write(std::move(event));
  }

  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats,
             uint64_t transferred_bytes) override {
    if (status.ok()) {
      v1::PrefillEvent event;
      event.mutable_done()->set_cached_tokens(stats.cached_tokens);
      event.mutable_done()->set_computed_tokens(stats.computed_tokens);
      event.mutable_done()->set_transferred_bytes(transferred_bytes);
      *event.mutable_done()->mutable_load() = rpc::ToProto(frame_.worker.load());
      answer_.Write(std::move(event));
    }
    frame_.metrics.SequenceEnded(stats);
    answer_.End(status);
  }

 private:
  const WorkerFrame& frame_;
  Answer answer_;
  const absl::Time begun_;
};

}  // namespace

grpc::ServerUnaryReactor* PrefillService::Admit(grpc::CallbackServerContext* context,
                                                const v1::AdmitRequest* request,
                                                v1::AdmitReply* reply) {
  absl::Status status =
      frame_.state.draining() ? DrainingError() : frame_.gate.Check(*request, "Prefill.Admit");
  if (status.ok()) {
    const auto credit = frame_.worker.Admit(request->prompt_tokens(), TenantId(request->tenant()));
    status = credit.status();
    if (credit.ok()) reply->set_credit_id(credit->value().ToBytes());
    reply->set_credit_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(frame_.credit_lease)));
    *reply->mutable_load() = rpc::ToProto(frame_.worker.load());
  }
  frame_.metrics.CallEnded("Prefill.Admit", status);
  return rpc::FinishUnary(context, TypedError(status, frame_.source, request->request_id()));
}

grpc::ServerUnaryReactor* PrefillService::ReturnCredit(grpc::CallbackServerContext* context,
                                                       const v1::ReturnCreditRequest* request,
                                                       v1::ReturnCreditReply*) {
  const auto credit = rpc::ParseLeaseId(request->credit_id(), "credit_id");
  if (credit.ok()) frame_.worker.ReturnCredit(*credit);
  return rpc::FinishUnary(context, credit.status());
}

absl::StatusOr<handoff::PrefillCall> PrefillService::ToCall(
    const v1::PrefillRequest& request) const {
  SLUICE_RETURN_IF_ERROR(frame_.gate.Check(request, "Prefill.Run"));
  handoff::PrefillCall call;
  SLUICE_ASSIGN_OR_RETURN(call.context, rpc::ToContext(request, frame_.clock.Now()));
  if (request.no_cache()) call.context.domain.reset();
  SLUICE_ASSIGN_OR_RETURN(call.credit, rpc::ParseLeaseId(request.credit_id(), "credit_id"));
  SLUICE_ASSIGN_OR_RETURN(call.prompt, rpc::ParseTokens(request.prompt()));
  SLUICE_ASSIGN_OR_RETURN(call.emitted, rpc::ParseTokens(request.emitted()));
  SLUICE_RETURN_IF_ERROR(CheckPrompt(frame_, call.prompt, call.emitted));
  call.sampling = rpc::ToParams(request.sampling());
  SLUICE_RETURN_IF_ERROR(request::ValidateSampling(call.sampling, frame_.vocabulary));
  call.grant = request.grant();
  return call;
}

grpc::ServerWriteReactor<v1::PrefillEvent>* PrefillService::Run(
    grpc::CallbackServerContext* context, const v1::PrefillRequest* request) {
  return ServeStream<v1::PrefillEvent>(
      frame_, "Prefill.Run", context, *request,
      [this](const v1::PrefillRequest& r) { return ToCall(r); },
      [this](handoff::PrefillCall call, Answer answer) {
        return frame_.worker.Prefill(std::move(call),
                                     std::make_unique<StreamEvents>(frame_, std::move(answer)));
      });
}

}  // namespace sluice::services
