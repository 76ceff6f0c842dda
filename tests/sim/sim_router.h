// One process of a router: the real core of the router on two simulated threads, and its calls to
// workers and manager over simulated networks. A restart is a new object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "rpc/service_state.h"
#include "services/router/router_core.h"
#include "tests/sim/rpc_net.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_manager.h"
#include "tests/support/sim_loop.h"

namespace sluice::sim {

// What generations report when they are over, summed over the choices' first.
struct FlowCounts {
  uint64_t generations = 0;
  uint64_t split = 0;
  uint64_t cached = 0;  // with a prefix hit
  uint64_t retries = 0;
  uint64_t migrations = 0;
  uint64_t recomputed = 0;  // with recomputed tokens
  uint64_t poisoned = 0;
};

struct SimRouterOptions {
  router::RouterOptions core;
  // A lookup takes up to so many times the time the router waits for it.
  double lookup_slowness = 1;
  SimClient::Repeats repeats;
};

class SimRouter {
 public:
  // World, manager, counts and `net` outlive the router; `net` connects this process only.
  SimRouter(testing::SimWorld& world, absl::string_view name, testing::SimLoop& loop, RpcNet& net,
            const SimManager& manager, const SimRouterOptions& options, SimClient::SlotOf slot_of,
            std::shared_ptr<const services::TextModel> model, uint64_t seed, FlowCounts& counts);
  // As kill -9. Not from within one of the router's own tasks.
  ~SimRouter();

  router::RouterCore& core() { return *core_; }
  testing::SimLoop& loop() { return loop_; }
  RpcNet& net() { return net_; }
  void OnView(const v1::WorkerView& view);
  void SetPaused(bool paused);
  // Workers of its present view, with the incarnations it knows.
  bool Knows(const WorkerId& worker, Incarnation incarnation) const;
  // Once nothing runs: nothing is booked, nothing waits, no call is open. Empty if so.
  std::string CheckIdle() const;

 private:
  class Link;
  class Metrics;

  testing::SimLoop& loop_;
  testing::SimLoop& text_loop_;
  RpcNet& net_;
  SeededRandom random_;
  rpc::ServiceState state_;
  const std::unique_ptr<Metrics> metrics_;
  const cluster::Directory* directory_ = nullptr;
  bool fresh_ = true;
  std::unique_ptr<router::RouterCore> core_;
};

}  // namespace sluice::sim
