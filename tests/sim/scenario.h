// What happens in one simulated world: cluster, requests and faults, all drawn from one seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cluster/directory.h"
#include "handoff/guards.h"
#include "tests/sim/rpc_net.h"
#include "tests/sim/sim_process.h"
#include "tests/sim/sim_router.h"
#include "transport/loopback.h"

namespace sluice::sim {

struct Fault {
  enum class Kind {
    kPauseProcess,
    kPauseEngine,  // one thread alone
    kPauseMove,
    kPauseRouter,
    kCrash,       // and a new incarnation after `duration`
    kCutPages,    // the transport from a to b loses everything
    kClogPages,   // the transport from a to b holds everything
    kDisconnect,  // all connections between a and b break
    kCutCalls,    // calls toward or from a hang
    kSlow,        // steps of a take 10 times as long
  };
  Kind kind = Kind::kPauseProcess;
  absl::Duration at;
  absl::Duration duration;
  size_t a = 0;
  size_t b = 0;
  bool both = false;     // both directions
  bool forward = false;  // kCutCalls: toward the worker
};

struct Scenario {
  uint64_t seed = 0;
  bool calm = false;  // no faults and a good network
  std::vector<cluster::Role> roles;
  ProcessOptions process;
  transport::LinkPlan link;
  // Of links toward prefill workers, where it differs.
  std::optional<transport::LinkPlan> link_to_prefill;
  RpcPlan rpc;
  RouterOptions router;
  std::vector<SimRequest> requests;
  std::vector<Fault> faults;
  // Faults come until here; then everything heals.
  absl::Duration faults_end = absl::Seconds(8);
  absl::Duration router_pause_max = absl::ZeroDuration();
};

// A cluster of 2 to 6 workers under mixed load; about one world in eight is calm, the others are as
// rough as the seed says.
Scenario MakeScenario(uint64_t seed);
// A world without digests, tuned so that the rule `guard` is what stands between somebody's pages
// and somebody else's text. The caller switches the guard off, or leaves it on.
Scenario MakeGuardScenario(handoff::Guard guard, uint64_t seed);

std::string Describe(const Fault& fault);
std::string Describe(const Scenario& scenario);

}  // namespace sluice::sim
