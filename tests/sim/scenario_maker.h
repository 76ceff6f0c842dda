// Draws scenarios from a seed. Internal to scenario and guard_scenario.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/sim/scenario.h"

namespace sluice::sim {

class ScenarioMaker {
 public:
  explicit ScenarioMaker(uint64_t seed) : random_(Mix64(seed + 0x51)) { s_.seed = seed; }

  Scenario& scenario() { return s_; }
  uint64_t Range(uint64_t min, uint64_t max) { return min + random_.Below(max - min + 1); }
  double Unit() { return random_.Unit(); }
  bool Chance(double probability) { return random_.Unit() < probability; }
  absl::Duration Time(absl::Duration min, absl::Duration max) {
    return min + (max - min) * random_.Unit();
  }

  void MakeCluster();
  // Rough networks are slow against a lease, so that leases lapse in mid-transfer.
  void MakeNetwork();
  void MakeRouter();
  void MakeRequests(uint64_t count);
  void MakeFaults(uint64_t count);
  // Links stop one by one, and heal in another order.
  void MakeSwizzle();
  // The same fault now and then, at one worker.
  void MakeFaultsOf(Fault::Kind kind, uint64_t count, size_t slot, absl::Duration min,
                    absl::Duration max);

 private:
  void MakeWorker(ProcessOptions* process);
  void MakeSampling(request::SamplingParams* sampling);
  void MakeStops(SimRequest* request);
  std::vector<size_t> Shuffled(std::vector<size_t> items);
  std::vector<request::TokenId> Tokens(uint64_t count);

  SeededRandom random_;
  Scenario s_;
};

}  // namespace sluice::sim
