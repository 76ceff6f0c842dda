// sluice.v1.Decode over a Worker: conversion only.
#pragma once

#include "services/worker/call_frame.h"
#include "sluice/v1/decode.grpc.pb.h"

namespace sluice::services {

class DecodeService final : public v1::Decode::CallbackService {
 public:
  explicit DecodeService(WorkerFrame frame) : frame_(std::move(frame)) {}

  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context,
                                    const v1::ReserveRequest* request,
                                    v1::ReserveReply* reply) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseReply* reply) override;
  grpc::ServerWriteReactor<v1::TokenBatch>* Generate(grpc::CallbackServerContext* context,
                                                     const v1::DecodeRequest* request) override;

 private:
  absl::StatusOr<handoff::ReserveCall> ToCall(const v1::ReserveRequest& request) const;
  absl::StatusOr<handoff::DecodeCall> ToCall(const v1::DecodeRequest& request) const;

  const WorkerFrame frame_;
};

}  // namespace sluice::services
