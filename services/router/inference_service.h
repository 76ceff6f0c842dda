// The public gRPC service: authentication and messages; everything else is the backend's.
#pragma once

#include "base/clock.h"
#include "rpc/inference_backend.h"
#include "sluice/v1/inference.grpc.pb.h"

namespace sluice::router {

// Thread-safe. `backend` and `clock` must outlive the server that serves it.
class InferenceService final : public v1::Inference::CallbackService {
 public:
  InferenceService(rpc::InferenceBackend& backend, const Clock& clock)
      : backend_(backend), clock_(clock) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  rpc::InferenceBackend& backend_;
  const Clock& clock_;
};

}  // namespace sluice::router
