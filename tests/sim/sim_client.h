// The router's calls to workers over the simulated RPC network: what gRPC client and services do in
// production.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/loop.h"
#include "base/random.h"
#include "cluster/worker_client.h"
#include "tests/sim/rpc_net.h"

namespace sluice::sim {

// Owned by the router's loop. Answers and events come as messages and may be late or lost with
// their stream; credits and grants that nobody took expire at the worker.
class SimClient final : public cluster::WorkerClient {
 public:
  using SlotOf = std::function<size_t(const WorkerId&)>;
  // A router that is not quite right: asks again for a prefill that it has asked for, grant and
  // all, and ignores the answer.
  struct Repeats {
    double chance = 0;
    absl::Duration after_min, after_max;
  };
  SimClient(RpcNet& net, Loop& loop, SlotOf slot_of, RandomSource& random, const Repeats& repeats)
      : net_(net), loop_(loop), slot_of_(std::move(slot_of)), random_(random), repeats_(repeats) {}

  void Admit(const WorkerId& worker, const handoff::CallContext& context, uint32_t prompt_tokens,
             absl::AnyInvocable<void(absl::StatusOr<LeaseId>)> done) override;
  void ReturnCredit(const WorkerId& worker, LeaseId credit) override;
  void Reserve(const WorkerId& worker, handoff::ReserveCall call,
               absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) override;
  void Release(const WorkerId& worker, LeaseId lease) override;
  handoff::CallId StartPrefill(const WorkerId& worker, handoff::PrefillCall call,
                               std::unique_ptr<handoff::PrefillEvents> events) override;
  handoff::CallId StartDecode(const WorkerId& worker, handoff::DecodeCall call,
                              std::unique_ptr<handoff::DecodeEvents> events) override;
  void CancelCall(handoff::CallId call) override;

 private:
  template <typename Result>
  class Unary;
  class PrefillSender;
  class DecodeSender;

  // What travels is the time left, as hosts share no clock.
  std::function<void(handoff::CallContext&)> Rebase(const handoff::CallContext& context) const;
  RpcStreamPtr OpenCall(const WorkerId& worker, handoff::CallId id,
                        std::function<void(const absl::Status&)> on_broken);

  void Repeat(const WorkerId& worker, const handoff::PrefillCall& call);
  handoff::CallId SendPrefill(const WorkerId& worker, handoff::PrefillCall call,
                              std::unique_ptr<handoff::PrefillEvents> events);

  RpcNet& net_;
  Loop& loop_;
  const SlotOf slot_of_;
  RandomSource& random_;
  const Repeats repeats_;
  std::map<handoff::CallId, RpcStreamPtr> calls_;
  uint64_t last_call_ = 0;
};

}  // namespace sluice::sim
