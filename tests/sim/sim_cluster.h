// Runs one scenario: workers, router, networks and faults in one world, invariants after every
// event.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/rpc_net.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_process.h"
#include "tests/sim/sim_router.h"
#include "tests/support/sim_loop.h"
#include "transport/loopback.h"

namespace sluice::sim {

// What many runs together must have met, so that passing means something.
struct SimCounts {
  uint64_t events = 0;
  uint64_t requests = 0;
  uint64_t ok = 0;
  uint64_t split = 0;
  uint64_t cached = 0;  // requests with a prefix hit
  uint64_t retries = 0;
  uint64_t migrations = 0;
  uint64_t crashes = 0;
  uint64_t transfers = 0;
  uint64_t transfers_failed = 0;
  uint64_t lease_expiries = 0;
  uint64_t stale_messages = 0;
  uint64_t duplicate_messages = 0;
  uint64_t quarantines = 0;  // events after which a page was in quarantine
  uint64_t evictions = 0;
  uint64_t preempted = 0;    // requests with recomputed tokens
  absl::Duration drain_max;  // from the last request's end until nothing was held
  std::map<std::string, uint64_t> errors;
  std::map<std::string, uint64_t> points;  // how often each fault point was reached
  void Add(const SimCounts& other);
  std::string ToString() const;
};

struct SimResult {
  // The first thing that must never happen; empty: nothing did.
  std::string violation;
  uint64_t hash = 0;  // of all events and all tokens
  SimCounts counts;
};

struct SimOptions {
  bool trace = false;  // tells on stderr what happens
  handoff::Guards guards;
};

SimResult RunScenario(Scenario scenario, const SimOptions& options = {});

// The tokens of a request alone on an engine of its own.
std::vector<request::TokenId> ReferenceTokens(const engine::ToyModelOptions& model,
                                              const SimRequest& request);

}  // namespace sluice::sim
