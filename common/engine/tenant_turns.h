// In which order the prompts of several tenants are computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "base/ids.h"

namespace sluice::engine {

// Weighted fair queueing with tokens as the cost (Demers, Keshav, Shenker 1989), its virtual time
// that of the prompt being computed, as in start-time fair queueing (Goyal, Vin, Cheng 1996): while
// several tenants have prompts, each gets compute in proportion to its weight, and who comes with a
// short prompt waits for no queue of another's. Prompts of one tenant keep their order. Plain state
// of one loop.
class TenantTurns {
 public:
  struct Turn {
    double start = 0;
    double end = 0;  // prompts go in the order of this
  };
  // Takes place of a prompt of `tokens` that arrives now. `weight` > 0.
  Turn Enter(const TenantId& tenant, double weight, uint64_t tokens);
  // A prompt with this turn advances.
  void Reach(const Turn& turn);
  // The prompt with this turn is over after `computed_tokens`, fewer than announced if some were
  // cached or it was cancelled: what was not computed does not count for prompts that come later.
  void Leave(const TenantId& tenant, double weight, const Turn& turn, uint64_t computed_tokens);

 private:
  // Beyond this many, tenants that are owed nothing are forgotten.
  static constexpr size_t kTenantsKept = 1024;

  double now_ = 0;  // virtual: grows by the tokens per weight that one of those who wait gets
  absl::flat_hash_map<TenantId, double> last_end_;
};

}  // namespace sluice::engine
