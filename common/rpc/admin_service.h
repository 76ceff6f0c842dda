// The admin service: drain, status, fault points. Served on the admin port of every process.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/fault.h"
#include "rpc/service_state.h"
#include "sluice/v1/admin.pb.h"

namespace grpc {
class Service;
}

namespace sluice::rpc {

struct AdminOptions {
  ServiceState* state = nullptr;    // must outlive the service
  FaultInjector* faults = nullptr;  // null: ArmFault answers UNIMPLEMENTED
  // Fills in what the process knows; `ready`, `draining` and the total in flight are set already.
  absl::AnyInvocable<void(v1::GetStatusReply*)> status = nullptr;
};

// A gRPC service to register; thread-safe. Destroying it releases everything that waits at a paused
// fault point.
std::unique_ptr<grpc::Service> MakeAdminService(AdminOptions options);

}  // namespace sluice::rpc
