// Runs one scenario: workers, routers, manager, clients, networks and faults in one world,
// invariants after every event.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "handoff/guards.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_router.h"

namespace sluice::sim {

// What many runs together must have met, so that passing means something.
struct SimCounts {
  uint64_t events = 0;
  uint64_t requests = 0;
  uint64_t ok = 0;
  uint64_t choices = 0;
  uint64_t resumes = 0;
  FlowCounts flows;
  uint64_t crashes = 0;
  uint64_t router_crashes = 0;
  uint64_t lost_pages = 0;  // overwritten in place
  uint64_t flips = 0;
  uint64_t digest_failures = 0;
  uint64_t transfers = 0;
  uint64_t transfers_failed = 0;
  uint64_t lease_expiries = 0;
  uint64_t stale_messages = 0;
  uint64_t duplicate_messages = 0;
  uint64_t quarantines = 0;  // events after which a page was in quarantine
  uint64_t evictions = 0;
  absl::Duration drain_max;                // from the last request's end until nothing was held
  std::map<std::string, uint64_t> errors;  // by reason
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
  handoff::Guards guards = {};
  // Hears of faults, and with `protocol` of every step of requests and hand-offs too.
  std::function<void(absl::Duration at, const std::string& what)> told = nullptr;
  bool protocol = false;
};

SimResult RunScenario(Scenario scenario, const SimOptions& options = {});

}  // namespace sluice::sim
