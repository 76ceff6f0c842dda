// sluice.v1.Prefill over a Worker: conversion only.
#pragma once

#include "services/worker/call_frame.h"
#include "sluice/v1/prefill.grpc.pb.h"

namespace sluice::services {

class PrefillService final : public v1::Prefill::CallbackService {
 public:
  explicit PrefillService(WorkerFrame frame) : frame_(std::move(frame)) {}

  grpc::ServerUnaryReactor* Admit(grpc::CallbackServerContext* context,
                                  const v1::AdmitRequest* request, v1::AdmitReply* reply) override;
  grpc::ServerUnaryReactor* ReturnCredit(grpc::CallbackServerContext* context,
                                         const v1::ReturnCreditRequest* request,
                                         v1::ReturnCreditReply* reply) override;
  grpc::ServerWriteReactor<v1::PrefillEvent>* Run(grpc::CallbackServerContext* context,
                                                  const v1::PrefillRequest* request) override;

 private:
  absl::StatusOr<handoff::PrefillCall> ToCall(const v1::PrefillRequest& request) const;

  const WorkerFrame frame_;
};

}  // namespace sluice::services
