// How a router talks to workers: the calls of handoff::Worker, across whatever lies between.
// Production speaks gRPC, the simulation a simulated network.
#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "handoff/worker.h"

namespace sluice::cluster {

// How a call ends whose connection broke after it had reached the worker: the worker died, or the
// network did. Told from an UNAVAILABLE that a living worker answers, and from one that was never
// reached.
inline constexpr char kConnectionBrokenUrl[] = "sluice/connection-broken";
inline absl::Status ConnectionBroken(absl::Status status) {
  status.SetPayload(kConnectionBrokenUrl, absl::Cord());
  return status;
}
inline bool IsConnectionBroken(const absl::Status& status) {
  return status.GetPayload(kConnectionBrokenUrl).has_value();
}

// Owned by the router's loop; every callback and event runs on that loop, none from within the call
// that caused it. A worker that cannot be reached ends calls with UNAVAILABLE.
class WorkerClient {
 public:
  virtual ~WorkerClient() = default;

  virtual void Admit(const WorkerId& worker, const handoff::CallContext& context,
                     uint32_t prompt_tokens,
                     absl::AnyInvocable<void(absl::StatusOr<LeaseId>)> done) = 0;
  virtual void ReturnCredit(const WorkerId& worker, LeaseId credit) = 0;
  virtual void Reserve(const WorkerId& worker, handoff::ReserveCall call,
                       absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) = 0;
  virtual void Release(const WorkerId& worker, LeaseId lease) = 0;
  virtual handoff::CallId StartPrefill(const WorkerId& worker, handoff::PrefillCall call,
                                       std::unique_ptr<handoff::PrefillEvents> events) = 0;
  virtual handoff::CallId StartDecode(const WorkerId& worker, handoff::DecodeCall call,
                                      std::unique_ptr<handoff::DecodeEvents> events) = 0;
  // OnEnd(CANCELLED) may or may not follow; unknown ids are ignored.
  virtual void CancelCall(handoff::CallId call) = 0;
};

}  // namespace sluice::cluster
