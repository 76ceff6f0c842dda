#include "engine/tenant_turns.h"

#include <algorithm>

namespace sluice::engine {

TenantTurns::Turn TenantTurns::Enter(const TenantId& tenant, double weight, uint64_t tokens) {
  if (last_end_.size() >= kTenantsKept)
    absl::erase_if(last_end_, [this](const auto& entry) { return entry.second <= now_; });
  double& last_end = last_end_[tenant];
  // A tenant that was idle does not bring saved-up time along.
  const double start = std::max(last_end, now_);
  last_end = start + static_cast<double>(std::max<uint64_t>(tokens, 1)) / weight;
  return {start, last_end};
}

void TenantTurns::Reach(const Turn& turn) { now_ = std::max(now_, turn.start); }

void TenantTurns::Leave(const TenantId& tenant, double weight, const Turn& turn,
                        uint64_t computed_tokens) {
  const auto found = last_end_.find(tenant);
  if (found == last_end_.end()) return;
  const double unused = turn.end - turn.start - static_cast<double>(computed_tokens) / weight;
  found->second -= std::max(unused, 0.0);
}

}  // namespace sluice::engine
