#include "rpc/admin_service.h"

#include <csignal>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "rpc/error.h"
#include "rpc/status_map.h"
#include "sluice/v1/admin.grpc.pb.h"

namespace sluice::rpc {
namespace {

// A point where threads wait until it is opened.
class Gate {
 public:
  void Wait() {
    MutexLock lock(mutex_);
    while (!open_) opened_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    opened_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ SLUICE_GUARDED_BY(mutex_) = false;
};

// The gate opens when the action is destroyed, which disarming does not do while a thread waits
// inside; hence the map.
class FaultArmer {
 public:
  explicit FaultArmer(FaultInjector& faults) : faults_(faults) {}
  ~FaultArmer() {
    MutexLock lock(mutex_);
    for (auto& [point, gate] : gates_) {
      faults_.Disarm(point);
      gate->Open();
    }
  }

  // The number of hits that the action did not see.
  absl::StatusOr<uint64_t> Arm(const v1::ArmFaultRequest& request) {
    const std::string& point = request.point();
    if (point.empty())
      return MakeError(v1::INVALID_FIELD, "name the fault point", {.field = "point"});
    if (request.kind() == v1::ArmFaultRequest::KIND_UNSPECIFIED)
      return faults_.HitCount(point);  // only the hits are asked
    MutexLock lock(mutex_);
    const auto it = gates_.find(point);
    if (it != gates_.end()) {
      faults_.Disarm(point);
      it->second->Open();
      gates_.erase(it);
    }
    FaultInjector::Action action;
    switch (request.kind()) {
      case v1::ArmFaultRequest::FAIL:
        action = [point] {
          return absl::InternalError(absl::StrCat("fault point ", point, " is armed to fail"));
        };
        break;
      case v1::ArmFaultRequest::CRASH:
        action = [] {
          raise(SIGKILL);
          return absl::OkStatus();
        };
        break;
      case v1::ArmFaultRequest::PAUSE: {
        auto gate = std::make_shared<Gate>();
        gates_[point] = gate;
        action = [gate] {
          gate->Wait();
          return absl::OkStatus();
        };
        break;
      }
      default:
        faults_.Disarm(point);
        return faults_.HitCount(point);
    }
    return faults_.Arm(point, std::move(action), request.request_id());
  }

 private:
  FaultInjector& faults_;
  Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Gate>> gates_ SLUICE_GUARDED_BY(mutex_);
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(AdminOptions options) : options_(std::move(options)) {
    if (options_.faults != nullptr) armer_ = std::make_unique<FaultArmer>(*options_.faults);
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                  v1::DrainReply* reply) override {
    options_.state->BeginDrain();
    reply->set_in_flight(options_.state->in_flight());
    return FinishUnary(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusReply* reply) override {
    reply->set_ready(options_.state->ready());
    reply->set_draining(options_.state->draining());
    (*reply->mutable_in_flight())["all"] = options_.state->in_flight();
    MutexLock lock(status_mutex_);
    if (options_.status) options_.status(reply);
    return FinishUnary(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ArmFault(grpc::CallbackServerContext* context,
                                     const v1::ArmFaultRequest* request,
                                     v1::ArmFaultReply* reply) override {
    if (armer_ == nullptr)
      return FinishUnary(context, absl::UnimplementedError("fault points are not in this build"));
    const absl::StatusOr<uint64_t> hits = armer_->Arm(*request);
    if (hits.ok()) reply->set_hits(*hits);
    return FinishUnary(context, hits.status());
  }

 private:
  AdminOptions options_;
  Mutex status_mutex_;
  std::unique_ptr<FaultArmer> armer_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(AdminOptions options) {
  return std::make_unique<AdminService>(std::move(options));
}

}  // namespace sluice::rpc
