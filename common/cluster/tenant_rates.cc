#include "cluster/tenant_rates.h"

namespace sluice::cluster {
namespace {

// The manager's word holds for so long.
constexpr absl::Duration kAskAgain = absl::Milliseconds(50);

}  // namespace

TenantRates::State& TenantRates::StateOf(const TenantId& tenant) {
  const auto found = states_.find(tenant);
  if (found != states_.end()) return found->second;
  const absl::Time now = clock_.Now();
  if (states_.size() >= tenants_max_) {
    absl::erase_if(states_, [now](auto& entry) {
      return entry.second.sequences.used() == 0 && entry.second.idle(now);
    });
  }
  State& state =
      states_.emplace(tenant, State{{}, LeasedLimit(now), LeasedLimit(now), {}}).first->second;
  state.requests.SetLeased(leased_, now);
  state.tokens.SetLeased(leased_, now);
  state.sequences.SetLeased(leased_);
  return state;
}

void TenantRates::SetBudgets(const TenantId& tenant, const TenantBudgets& budgets) {
  State& state = StateOf(tenant);
  if (state.budgets == budgets) return;
  const absl::Time now = clock_.Now();
  state.requests.SetLimit(budgets.requests, now);
  state.tokens.SetLimit(budgets.tokens, now);
  state.sequences.SetLimit(budgets.sequences_max);
  state.budgets = budgets;
}

std::variant<TenantRates::Charge, TenantRates::Refused> TenantRates::Admit(const TenantId& tenant,
                                                                           uint64_t tokens,
                                                                           uint32_t sequences) {
  State& state = StateOf(tenant);
  const absl::Time now = clock_.Now();
  const auto amount = static_cast<double>(tokens);
  state.sequences.Want(sequences);
  state.requests.Want(1);
  state.tokens.Want(amount);
  if (!state.sequences.Covers(sequences)) {
    return Refused{RateLimit::kSequences, static_cast<double>(sequences),
                   static_cast<double>(state.sequences.limit()), absl::ZeroDuration()};
  }
  if (!state.requests.Covers(1, now)) {
    return Refused{RateLimit::kRequests, 1, state.requests.limit().burst,
                   state.requests.Wait(1, now)};
  }
  if (!state.tokens.Covers(amount, now)) {
    return Refused{RateLimit::kTokens, amount, state.tokens.limit().burst,
                   state.tokens.Wait(amount, now)};
  }
  state.requests.Take(1, now);
  state.tokens.Take(amount, now);
  state.sequences.Take(sequences);
  return Charge{tenant, tokens, sequences};
}

void TenantRates::Settle(const Charge& charge, uint64_t used_tokens) {
  State& state = StateOf(charge.tenant);
  state.sequences.GiveBack(charge.sequences);
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

void TenantRates::SetLeased(bool leased) {
  if (leased == leased_) return;
  leased_ = leased;
  const absl::Time now = clock_.Now();
  for (auto& [tenant, state] : states_) {
    state.requests.SetLeased(leased, now);
    state.tokens.SetLeased(leased, now);
    state.sequences.SetLeased(leased);
  }
}

bool TenantRates::MayAsk(const TenantId& tenant) const {
  const auto found = states_.find(tenant);
  return leased_ && found != states_.end() && clock_.Now() - found->second.no_more_at >= kAskAgain;
}

void TenantRates::Need(const TenantId& tenant, uint64_t tokens, uint32_t sequences) {
  State& state = StateOf(tenant);
  state.requests.Need(1);
  state.tokens.Need(static_cast<double>(tokens));
  state.sequences.Need(sequences);
}

bool TenantRates::HeldElsewhere(const TenantId& tenant, uint64_t tokens, uint32_t sequences) {
  State& state = StateOf(tenant);
  const absl::Time now = clock_.Now();
  const auto amount = static_cast<double>(tokens);
  const auto there = [](bool covers, bool elsewhere) { return covers || elsewhere; };
  return there(state.requests.Covers(1, now), state.requests.HeldElsewhere(1, now)) &&
         there(state.tokens.Covers(amount, now), state.tokens.HeldElsewhere(amount, now)) &&
         there(state.sequences.Covers(sequences), state.sequences.HeldElsewhere(sequences));
}

std::vector<TenantUse> TenantRates::Uses() {
  const absl::Time now = clock_.Now();
  std::vector<TenantUse> uses;
  for (auto& [tenant, state] : states_) {
    if (state.idle(now)) continue;
    TenantUse use{tenant, std::nullopt, std::nullopt, std::nullopt};
    if (!state.requests.unlimited()) use.requests = state.requests.Report(now);
    if (!state.tokens.unlimited()) use.tokens = state.tokens.Report(now);
    if (!state.sequences.unlimited()) use.sequences = state.sequences.Report();
    if (use.requests || use.tokens || use.sequences) uses.push_back(std::move(use));
  }
  return uses;
}

void TenantRates::Apply(const TenantId& tenant, const TenantLease& lease) {
  State& state = StateOf(tenant);
  const absl::Time now = clock_.Now();
  if (lease.requests) state.requests.Apply(*lease.requests, now);
  if (lease.tokens) state.tokens.Apply(*lease.tokens, now);
  if (lease.sequences) state.sequences.Apply(*lease.sequences);
}

RateReport TenantRates::Report(const TenantId& tenant) {
  State& state = StateOf(tenant);
  const absl::Time now = clock_.Now();
  RateReport report;
  if (!state.requests.unlimited()) report.requests = state.requests.Window(now);
  if (!state.tokens.unlimited()) report.tokens = state.tokens.Window(now);
  return report;
}

uint32_t TenantRates::sequences(const TenantId& tenant) const {
  const auto found = states_.find(tenant);
  return found == states_.end() ? 0 : found->second.sequences.used();
}

}  // namespace sluice::cluster
