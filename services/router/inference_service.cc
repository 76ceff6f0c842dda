#include "services/router/inference_service.h"

#include <memory>
#include <utility>

#include "grpc/grpc_security_constants.h"
#include "grpc/support/time.h"
#include "rpc/error.h"
#include "rpc/server_stream.h"
#include "rpc/status_map.h"

namespace sluice::router {
namespace {

// The first value of a metadata key, or "".
std::string Metadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

identity::Credentials CredentialsOf(const grpc::CallbackServerContext& context) {
  identity::Credentials credentials;
  credentials.bearer = rpc::BearerOf(Metadata(context, "authorization"));
  credentials.named_tenant = Metadata(context, rpc::kTenantHeader);
  const auto peer = context.auth_context();
  // Names count only if the transport has verified the certificate they stand in.
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return credentials;
  for (const grpc::string_ref& name : peer->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME))
    credentials.certificate_names.emplace_back(name.data(), name.size());
  return credentials;
}

// By gRPC's own clock, which no one sets: context.deadline() is wall time, and after a jump of that
// the clocks of two libraries disagree for seconds.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  const gpr_timespec deadline = context.raw_deadline();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0)
    return absl::InfiniteFuture();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return clock.Now() + absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

class StreamSink final : public rpc::GenerationSink {
 public:
  explicit StreamSink(std::shared_ptr<rpc::ServerStream<v1::GenerateResponse>> stream)
      : stream_(std::move(stream)) {}
  bool OnMessage(v1::GenerateResponse message) override {
    return stream_->Write(std::move(message));
  }
  size_t backlog_bytes() const override { return stream_->backlog_bytes(); }
  void OnEnd(const absl::Status& status) override {
    if (rpc::DetailOf(status).reason() == v1::SLOW_CONSUMER) return stream_->Abandon(status);
    stream_->Close(status);
  }

 private:
  const std::shared_ptr<rpc::ServerStream<v1::GenerateResponse>> stream_;
};

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto stream = std::make_shared<rpc::ServerStream<v1::GenerateResponse>>(context);
  auto* reactor = stream->reactor();
  const auto tenant = backend_.Authenticate(CredentialsOf(*context));
  if (!tenant.ok()) {
    stream->Close(tenant.status());
    return reactor;
  }
  const std::function<void()> cancel = backend_.Generate(
      *request, {*tenant, DeadlineOf(*context, clock_)}, std::make_unique<StreamSink>(stream));
  stream->OnGone([cancel] { cancel(); });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest*,
                                                       v1::ListModelsResponse* response) {
  const auto tenant = backend_.Authenticate(CredentialsOf(*context));
  if (tenant.ok()) *response = backend_.ListModels();
  return rpc::FinishUnary(context, tenant.status());
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const auto tenant = backend_.Authenticate(CredentialsOf(*context));
  if (!tenant.ok()) return rpc::FinishUnary(context, tenant.status());
  auto result = backend_.Tokenize(*request);
  if (result.ok()) *response = *std::move(result);
  return rpc::FinishUnary(context, result.status());
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const auto tenant = backend_.Authenticate(CredentialsOf(*context));
  if (!tenant.ok()) return rpc::FinishUnary(context, tenant.status());
  auto result = backend_.Detokenize(*request);
  if (result.ok()) *response = *std::move(result);
  return rpc::FinishUnary(context, result.status());
}

}  // namespace sluice::router
