#include "services/worker/decode_service.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "request/sampling.h"
#include "rpc/domain.h"
#include "rpc/status_map.h"
#include "services/worker/stream_call.h"

namespace sluice::services {
namespace {

using Answer = StreamCall<v1::TokenBatch>;

// Turns the events of one call into messages. Called by the worker, one event at a time.
class StreamEvents final : public handoff::DecodeEvents {
 public:
  StreamEvents(const WorkerFrame& frame, Answer answer, const v1::DecodeRequest& request)
      : frame_(frame),
        answer_(std::move(answer)),
        attempt_(request.attempt()),
        split_(!request.lease_id().empty()),
        begun_(frame.clock.Now()) {}

  void OnLanded(absl::Duration transfer) override { frame_.metrics.Transferred(transfer); }

  void OnStarted(uint32_t held_tokens, uint64_t transferred_bytes,
                 absl::string_view transport) override {
    started_ = frame_.clock.Now();
    if (split_) frame_.metrics.PhaseEnded(request::Phase::kTransferring, started_ - begun_);
    v1::TokenBatch batch;
    batch.set_attempt(attempt_);
    batch.mutable_started()->set_held_tokens(held_tokens);
    batch.mutable_started()->set_transferred_bytes(transferred_bytes);
    batch.mutable_started()->set_transport(std::string(transport));
    answer_.Write(std::move(batch));
  }

  void OnToken(uint32_t position, const request::SampledToken& token,
               request::FinishReason finish) override {
    SLUICE_FAULT_OF(frame_.faults, "decode.token", answer_.request_id()).IgnoreError();
    frame_.metrics.TokenSampled();
    v1::TokenBatch batch;
    batch.set_attempt(attempt_);
    batch.set_position(position);
    *batch.add_tokens() = rpc::ToProto(token);
    batch.set_finish_reason(std::string(request::FinishReasonName(finish)));
    answer_.Write(std::move(batch));
  }

  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats) override {
    if (started_ > begun_)
      frame_.metrics.PhaseEnded(request::Phase::kDecoding, frame_.clock.Now() - started_);
    if (status.ok()) {
      v1::TokenBatch batch;
      batch.set_attempt(attempt_);
      batch.set_recomputed_tokens(stats.recomputed_tokens);
      *batch.mutable_load() = rpc::ToProto(frame_.worker.load());
      answer_.Write(std::move(batch));
    }
    frame_.metrics.SequenceEnded(stats);
    answer_.End(status);
  }

 private:
  const WorkerFrame& frame_;
  Answer answer_;
  const uint32_t attempt_;
  const bool split_;
  const absl::Time begun_;
  absl::Time started_ = absl::InfinitePast();
};

}  // namespace

absl::StatusOr<handoff::ReserveCall> DecodeService::ToCall(
    const v1::ReserveRequest& request) const {
  SLUICE_RETURN_IF_ERROR(frame_.gate.Check(request, "Decode.Reserve"));
  handoff::ReserveCall call;
  SLUICE_ASSIGN_OR_RETURN(call.context, rpc::ToContext(request, frame_.clock.Now()));
  SLUICE_ASSIGN_OR_RETURN(call.prompt, rpc::ParseTokens(request.prompt()));
  SLUICE_RETURN_IF_ERROR(CheckPrompt(frame_, call.prompt, {}));
  call.emitted_tokens = request.emitted_tokens();
  call.max_tokens = request.max_tokens();
  call.holder = Incarnation(request.holder_incarnation());
  SLUICE_ASSIGN_OR_RETURN(call.holder_layout_hash,
                          rpc::ParseId128(request.holder_layout_hash(), "holder_layout_hash"));
  call.holder_layout = request.holder_layout();
  SLUICE_ASSIGN_OR_RETURN(call.holder_numerics_id,
                          rpc::ParseId128(request.holder_numerics_id(), "holder_numerics_id"));
  return call;
}

grpc::ServerUnaryReactor* DecodeService::Reserve(grpc::CallbackServerContext* context,
                                                 const v1::ReserveRequest* request,
                                                 v1::ReserveReply* reply) {
  std::optional<rpc::InFlight> in_flight = frame_.state.Admit();
  auto call = in_flight.has_value() ? ToCall(*request) : DrainingError();
  if (!call.ok()) {
    frame_.metrics.CallEnded("Decode.Reserve", call.status());
    return rpc::FinishUnary(context,
                            TypedError(call.status(), frame_.source, request->request_id()));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // gRPC keeps request and reply until Finish.
  frame_.worker.Reserve(*std::move(call),
                        [this, reactor, request, reply,
                         in_flight = *std::move(in_flight)](absl::StatusOr<v1::Grant> grant) {
                          frame_.metrics.CallEnded("Decode.Reserve", grant.status());
                          *reply->mutable_load() = rpc::ToProto(frame_.worker.load());
                          const absl::Status status =
                              TypedError(grant.status(), frame_.source, request->request_id());
                          if (grant.ok()) *reply->mutable_grant() = *std::move(grant);
                          reactor->Finish(rpc::ToGrpc(status));
                        });
  return reactor;
}

grpc::ServerUnaryReactor* DecodeService::Release(grpc::CallbackServerContext* context,
                                                 const v1::ReleaseRequest* request,
                                                 v1::ReleaseReply*) {
  const auto lease = rpc::ParseLeaseId(request->lease_id(), "lease_id");
  if (lease.ok()) frame_.worker.Release(*lease);
  return rpc::FinishUnary(context, lease.status());
}

absl::StatusOr<handoff::DecodeCall> DecodeService::ToCall(const v1::DecodeRequest& request) const {
  SLUICE_RETURN_IF_ERROR(frame_.gate.Check(request, "Decode.Generate"));
  handoff::DecodeCall call;
  SLUICE_ASSIGN_OR_RETURN(call.context, rpc::ToContext(request, frame_.clock.Now()));
  if (request.no_cache()) call.context.domain.reset();
  SLUICE_ASSIGN_OR_RETURN(call.prompt, rpc::ParseTokens(request.prompt()));
  SLUICE_ASSIGN_OR_RETURN(call.emitted, rpc::ParseTokens(request.emitted()));
  if (request.lease_id().empty()) {
    SLUICE_RETURN_IF_ERROR(CheckPrompt(frame_, call.prompt, call.emitted));
  } else {
    SLUICE_ASSIGN_OR_RETURN(call.lease, rpc::ParseLeaseId(request.lease_id(), "lease_id"));
  }
  call.sampling = rpc::ToParams(request.sampling());
  SLUICE_RETURN_IF_ERROR(request::ValidateSampling(call.sampling, frame_.vocabulary));
  return call;
}

grpc::ServerWriteReactor<v1::TokenBatch>* DecodeService::Generate(
    grpc::CallbackServerContext* context, const v1::DecodeRequest* request) {
  return ServeStream<v1::TokenBatch>(
      frame_, "Decode.Generate", context, *request,
      [this](const v1::DecodeRequest& r) { return ToCall(r); },
      [this, request](handoff::DecodeCall call, Answer answer) {
        return frame_.worker.Decode(
            std::move(call), std::make_unique<StreamEvents>(frame_, std::move(answer), *request));
      });
}

}  // namespace sluice::services
