// What happens in one simulated world: cluster, requests and faults, all drawn from one seed, or
// written down.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cluster/directory.h"
#include "handoff/guards.h"
#include "tests/sim/oracle.h"
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
    kPauseRouter,  // a is the router's number
    kCrash,        // and a new incarnation after `duration`
    kCrashRouter,  // as kCrash; a is the router's number
    kCutPages,     // the transport from a to b loses everything
    kClogPages,    // the transport from a to b holds everything
    kDisconnect,   // all connections between a and b break
    kCutCalls,     // calls toward or from a hang
    kSlow,         // steps of a take 10 times as long
    kLoseAPage,    // a page of a is overwritten as if it had been given to somebody else
  };
  Kind kind = Kind::kPauseProcess;
  absl::Duration at;
  absl::Duration duration;
  size_t a = 0;
  size_t b = 0;
  bool both = false;     // both directions
  bool forward = false;  // kCutCalls: toward the worker
};

// A fault that strikes at the `nth` time that an event is told, counted from 1.
struct TriggeredFault {
  std::string event;
  uint64_t nth = 1;
  Fault fault;
};

// What happens to the `nth` message of a kind that a worker sends, or to the news of its `nth`
// read.
struct MessageRule {
  size_t worker = 0;
  std::string kind;
  uint64_t nth = 1;
  Treatment treatment;
};

struct Scenario {
  uint64_t seed = 0;
  bool calm = false;  // no faults and a good network
  std::vector<cluster::Role> roles;
  size_t routers = 1;
  // Flavours of the model by what a worker computes first: prompts (prefill and both), or tokens.
  uint32_t prompt_flavour = 0;
  uint32_t token_flavour = 0;
  // What every other life of a worker has on top: another build.
  uint32_t upgrade = 0;
  ProcessOptions process;
  transport::LinkPlan link;
  // Of links toward prefill workers, where it differs.
  std::optional<transport::LinkPlan> link_to_prefill;
  RpcPlan rpc;
  SimRouterOptions router;
  // A worker that was not heard of for so long is taken out of the view.
  absl::Duration silence_max = absl::Seconds(2);
  std::vector<SimRequest> requests;
  std::vector<Fault> faults;
  std::vector<TriggeredFault> triggered;
  std::vector<MessageRule> message_rules;
  // Faults come until here; then everything heals.
  absl::Duration faults_end = absl::Seconds(8);
  absl::Duration router_pause_max = absl::ZeroDuration();
};

// A cluster of 2 to 6 workers and one or two routers under mixed load; about one world in eight is
// calm, the others are as rough as the seed says.
Scenario MakeScenario(uint64_t seed);
// A world tuned so that the rule `guard` is what stands between somebody's pages and somebody
// else's text; digests are off unless they are the rule. The caller switches the guard off, or
// leaves it on.
Scenario MakeGuardScenario(handoff::Guard guard, uint64_t seed);

std::string Describe(const Fault& fault);
std::string Describe(const Scenario& scenario);

}  // namespace sluice::sim
