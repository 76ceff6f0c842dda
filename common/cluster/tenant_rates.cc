#include "cluster/tenant_rates.h"

#include <algorithm>

namespace sluice::cluster {
namespace {

RateWindow WindowOf(TokenBucket& bucket, absl::Time now) {
  const double level = std::max(bucket.level(now), 0.0);
  return {static_cast<uint64_t>(bucket.budget().burst), static_cast<uint64_t>(level),
          bucket.Wait(bucket.budget().burst, now)};
}

}  // namespace

TenantRates::State& TenantRates::StateOf(const TenantId& tenant) {
  const auto found = states_.find(tenant);
  if (found != states_.end()) return found->second;
  const absl::Time now = clock_.Now();
  if (states_.size() >= tenants_max_) {
    absl::erase_if(states_, [now](auto& entry) {
      State& state = entry.second;
      return state.sequences == 0 && state.requests.level(now) >= state.requests.budget().burst &&
             state.tokens.level(now) >= state.tokens.budget().burst;
    });
  }
  return states_
      .emplace(tenant, State{{}, TokenBucket(Budget(), now), TokenBucket(Budget(), now), 0})
      .first->second;
}

void TenantRates::SetBudgets(const TenantId& tenant, const TenantBudgets& budgets) {
  State& state = StateOf(tenant);
  if (state.budgets == budgets) return;
  const absl::Time now = clock_.Now();
  state.requests.SetBudget(budgets.requests, now);
  state.tokens.SetBudget(budgets.tokens, now);
  state.budgets = budgets;
}

std::variant<TenantRates::Charge, TenantRates::Refused> TenantRates::Admit(const TenantId& tenant,
                                                                           uint64_t tokens,
                                                                           uint32_t sequences) {
  State& state = StateOf(tenant);
  const absl::Time now = clock_.Now();
  const auto amount = static_cast<double>(tokens);
  // A request with more choices than may run at a time runs when nothing else does.
  if (state.sequences > 0 &&
      sequences >
          state.budgets.sequences_max - std::min(state.sequences, state.budgets.sequences_max)) {
    return Refused{RateLimit::kSequences, static_cast<double>(sequences),
                   static_cast<double>(state.budgets.sequences_max), absl::ZeroDuration()};
  }
  if (!state.requests.Covers(1, now)) {
    return Refused{RateLimit::kRequests, 1, state.budgets.requests.burst,
                   state.requests.Wait(1, now)};
  }
  if (!state.tokens.Covers(amount, now)) {
    return Refused{RateLimit::kTokens, amount, state.budgets.tokens.burst,
                   state.tokens.Wait(amount, now)};
  }
  state.requests.Take(1, now);
  state.tokens.Take(amount, now);
  state.sequences += sequences;
  return Charge{tenant, tokens, sequences};
}

void TenantRates::Settle(const Charge& charge, uint64_t used_tokens) {
  State& state = StateOf(charge.tenant);
  state.sequences -= std::min(state.sequences, charge.sequences);
  const absl::Time now = clock_.Now();
  if (used_tokens <= charge.tokens) {
    state.tokens.GiveBack(static_cast<double>(charge.tokens - used_tokens), now);
  } else {
    state.tokens.Take(static_cast<double>(used_tokens - charge.tokens), now);
  }
}

void TenantRates::Undo(const Charge& charge) {
  Settle(charge, 0);
  StateOf(charge.tenant).requests.GiveBack(1, clock_.Now());
}

RateReport TenantRates::Report(const TenantId& tenant) {
  State& state = StateOf(tenant);
  const absl::Time now = clock_.Now();
  RateReport report;
  if (!state.requests.budget().unlimited()) report.requests = WindowOf(state.requests, now);
  if (!state.tokens.budget().unlimited()) report.tokens = WindowOf(state.tokens, now);
  return report;
}

uint32_t TenantRates::sequences(const TenantId& tenant) const {
  const auto found = states_.find(tenant);
  return found == states_.end() ? 0 : found->second.sequences;
}

}  // namespace sluice::cluster
