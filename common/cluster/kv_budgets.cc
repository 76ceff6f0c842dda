#include "cluster/kv_budgets.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cluster/fair_division.h"

namespace sluice::cluster {
namespace {

// Updates that a worker may leave unacknowledged; after these it gets none until it reports.
constexpr uint64_t kUpdatesPendingMax = 16;
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

uint64_t AddSaturating(uint64_t a, uint64_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }

void Add(KvUsage& sum, const KvUsage& usage) {
  sum.active_bytes = AddSaturating(sum.active_bytes, usage.active_bytes);
  sum.cached_bytes = AddSaturating(sum.cached_bytes, usage.cached_bytes);
  sum.refused_bytes = AddSaturating(sum.refused_bytes, usage.refused_bytes);
}

}  // namespace

uint64_t KvBudgets::Account::charged_bytes() const {
  uint64_t limit = applied_limit_bytes;
  for (const auto& [version, sent] : sent_limit_bytes) limit = std::max(limit, sent);
  return std::max(limit, usage.held_bytes());
}

void KvBudgets::SetQuotas(absl::flat_hash_map<TenantId, KvQuota> quotas, KvQuota rest) {
  quotas_ = std::move(quotas);
  rest_ = rest;
}

void KvBudgets::Attach(const WorkerId& worker, Incarnation incarnation, uint64_t capacity_bytes,
                       uint64_t request_bytes) {
  Worker fresh;
  fresh.incarnation = incarnation;
  fresh.capacity_bytes = capacity_bytes;
  fresh.request_bytes = request_bytes;
  workers_.insert_or_assign(worker, std::move(fresh));
}

void KvBudgets::Report(const WorkerId& worker, Incarnation incarnation, uint64_t applied_version,
                       absl::flat_hash_map<TenantId, KvUsage> usage) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return;
  Worker& reporter = found->second;
  applied_version = std::min(applied_version, reporter.version);
  reporter.applied_version = std::max(reporter.applied_version, applied_version);

  for (auto& [tenant, account] : reporter.accounts) {
    account.usage = {};
    auto& sent = account.sent_limit_bytes;
    const auto newer = sent.upper_bound(applied_version);
    if (newer != sent.begin()) account.applied_limit_bytes = std::prev(newer)->second;
    sent.erase(sent.begin(), newer);
  }
  for (const auto& [tenant, reported] : usage) {
    const bool known = reporter.accounts.contains(tenant);
    const bool fits = known || reporter.accounts.size() < tenants_max_;
    Add(reporter.accounts[fits ? tenant : TenantId()].usage, reported);
  }
  absl::erase_if(reporter.accounts, [](const auto& entry) {
    const Account& account = entry.second;
    return account.charged_bytes() == 0 && account.usage.refused_bytes == 0;
  });
}

void KvBudgets::Dead(const WorkerId& worker, Incarnation incarnation) {
  const auto found = workers_.find(worker);
  if (found != workers_.end() && found->second.incarnation == incarnation) workers_.erase(found);
}

std::vector<KvBudgetUpdate> KvBudgets::Divide() {
  Claimants claimants = Collect();
  DivideCapacity(claimants);
  absl::flat_hash_map<const Worker*, std::vector<Place*>> by_worker;
  for (auto& [tenant, claimant] : claimants) {
    SpreadShares(claimant);
    for (Place& place : claimant.places) by_worker[place.worker].push_back(&place);
  }
  std::vector<KvBudgetUpdate> updates;
  for (auto& [id, worker] : workers_) {
    if (worker.version - worker.applied_version >= kUpdatesPendingMax) continue;
    const std::vector<Place*>& places = by_worker[&worker];
    FitIntoWorker(worker.capacity_bytes, places);
    KvBudgetUpdate update{id, ++worker.version, {}};
    for (Place* place : places) {
      place->budget.limit_bytes = NextLimit(*place, claimants.at(place->budget.tenant));
      place->account->sent_limit_bytes[worker.version] = place->budget.limit_bytes;
      // It has gone from there: should it come back, it is new again.
      const bool capped = claimants.at(place->budget.tenant).quota.cap_bytes != kUnlimited;
      if (place->wanted_bytes == 0 && !capped) continue;
      update.budgets.push_back(std::move(place->budget));
    }
    updates.push_back(std::move(update));
  }
  return updates;
}

KvUsage KvBudgets::UsageOf(const TenantId& tenant) const {
  KvUsage sum;
  for (const auto& [id, worker] : workers_) {
    const auto account = worker.accounts.find(tenant);
    if (account != worker.accounts.end()) Add(sum, account->second.usage);
  }
  return sum;
}

absl::btree_map<TenantId, KvUsage> KvBudgets::Usage() const {
  absl::btree_map<TenantId, KvUsage> sums;
  for (const auto& [id, worker] : workers_) {
    for (const auto& [tenant, account] : worker.accounts) Add(sums[tenant], account.usage);
  }
  return sums;
}

uint64_t KvBudgets::ChargedBytes(const TenantId& tenant) const {
  uint64_t sum = 0;
  for (const auto& [id, worker] : workers_) {
    const auto account = worker.accounts.find(tenant);
    if (account != worker.accounts.end()) sum = AddSaturating(sum, account->second.charged_bytes());
  }
  return sum;
}

const KvQuota& KvBudgets::QuotaOf(const TenantId& tenant) const {
  const auto found = quotas_.find(tenant);
  return found == quotas_.end() ? rest_ : found->second;
}

// What is held, what was refused, and room for the next request.
uint64_t KvBudgets::WantedBytes(const Worker& worker, const Account& account) {
  const uint64_t known = AddSaturating(account.usage.held_bytes(), account.usage.refused_bytes);
  if (known == 0) return 0;
  return std::min(AddSaturating(known, worker.request_bytes), worker.capacity_bytes);
}

KvBudgets::Claimants KvBudgets::Collect() {
  Claimants claimants;
  for (auto& [id, worker] : workers_) {
    for (auto& [tenant, account] : worker.accounts) {
      Claimant& claimant = claimants[tenant];
      claimant.quota = QuotaOf(tenant);
      const uint64_t wanted = WantedBytes(worker, account);
      claimant.places.push_back({&worker, &account, wanted, 0, {tenant}});
      claimant.wanted_bytes = AddSaturating(claimant.wanted_bytes, wanted);
      claimant.charged_bytes = AddSaturating(claimant.charged_bytes, account.charged_bytes());
    }
  }
  return claimants;
}

void KvBudgets::DivideCapacity(Claimants& claimants) const {
  uint64_t capacity = 0;
  for (const auto& [id, worker] : workers_)
    capacity = AddSaturating(capacity, worker.capacity_bytes);

  std::vector<Claim> own;
  std::vector<Claim> fair;
  for (const auto& [tenant, claimant] : claimants) {
    const KvQuota& quota = claimant.quota;
    own.push_back({quota.weight, quota.floor_bytes, quota.cap_bytes});
    fair.push_back(
        {quota.weight, quota.floor_bytes, std::min(quota.cap_bytes, claimant.wanted_bytes)});
  }
  const std::vector<uint64_t> fair_parts = DivideFairly(capacity, fair);
  // The floors of those who are away stay in reserve.
  for (const auto& [tenant, quota] : quotas_) {
    if (!claimants.contains(tenant) && quota.floor_bytes > 0)
      own.push_back({quota.weight, quota.floor_bytes, quota.floor_bytes});
  }
  const std::vector<uint64_t> own_parts = DivideFairly(capacity, own);
  size_t i = 0;
  for (auto& [tenant, claimant] : claimants) {
    claimant.entitled_bytes = own_parts[i];
    claimant.own_bytes = std::min(own_parts[i], claimant.wanted_bytes);
    claimant.fair_bytes = std::max(fair_parts[i], claimant.own_bytes);
    ++i;
  }
}

// A share of a tenant over its places: what is held first, then what is wanted beyond.
std::vector<uint64_t> KvBudgets::Spread(uint64_t share_bytes, const Claimant& claimant) {
  std::vector<Claim> claims;
  for (const Place& place : claimant.places) {
    claims.push_back({std::max(1.0, static_cast<double>(place.wanted_bytes)),
                      place.account->usage.held_bytes(), place.wanted_bytes});
  }
  return DivideFairly(share_bytes, claims);
}

void KvBudgets::SpreadShares(Claimant& claimant) {
  const std::vector<uint64_t> floor = Spread(claimant.quota.floor_bytes, claimant);
  const std::vector<uint64_t> own = Spread(claimant.own_bytes, claimant);
  const std::vector<uint64_t> fair = Spread(claimant.fair_bytes, claimant);
  for (size_t i = 0; i < claimant.places.size(); ++i) {
    Place& place = claimant.places[i];
    const uint64_t request = std::min(place.wanted_bytes, place.worker->request_bytes);
    place.budget.own_bytes = std::max(own[i], request);
    place.budget.fair_bytes = std::max(fair[i], place.budget.own_bytes);
    place.budget.floor_bytes = std::min(floor[i], place.budget.own_bytes);
  }
  std::vector<Claim> spare;
  for (const Place& place : claimant.places) {
    const uint64_t room =
        place.worker->capacity_bytes - std::min(place.worker->capacity_bytes, place.wanted_bytes);
    spare.push_back({std::max(1.0, static_cast<double>(place.worker->capacity_bytes)), 0, room});
  }
  const std::vector<uint64_t> parts =
      DivideFairly(claimant.entitled_bytes - claimant.own_bytes, spare);
  for (size_t i = 0; i < parts.size(); ++i) claimant.places[i].spare_bytes = parts[i];
}

// Cuts what the shares of all tenants give to one worker down to its capacity.
void KvBudgets::FitIntoWorker(uint64_t capacity_bytes, absl::Span<Place* const> places) {
  const auto fit = [&](uint64_t KvBudget::*part, absl::Span<const uint64_t> floors) {
    std::vector<Claim> claims;
    for (size_t i = 0; i < places.size(); ++i) {
      const uint64_t bytes = places[i]->budget.*part;
      claims.push_back({std::max(1.0, static_cast<double>(bytes)), floors[i], bytes});
    }
    const std::vector<uint64_t> parts = DivideFairly(capacity_bytes, claims);
    for (size_t i = 0; i < places.size(); ++i) places[i]->budget.*part = parts[i];
    return parts;
  };
  std::vector<uint64_t> floors;
  std::vector<uint64_t> requests;  // at least one for everybody, where there is room for that
  uint64_t requests_sum = 0;
  for (const Place* place : places) {
    const KvBudget& budget = place->budget;
    floors.push_back(budget.floor_bytes);
    requests.push_back(
        std::max(budget.floor_bytes, std::min(budget.own_bytes, place->worker->request_bytes)));
    requests_sum = AddSaturating(requests_sum, requests.back());
  }
  const std::vector<uint64_t> own =
      fit(&KvBudget::own_bytes, requests_sum <= capacity_bytes ? requests : floors);
  fit(&KvBudget::fair_bytes, own);
  uint64_t room = capacity_bytes;
  std::vector<Claim> spare;
  for (size_t i = 0; i < places.size(); ++i) {
    room -= own[i];
    const uint64_t bytes = places[i]->spare_bytes;
    spare.push_back({std::max(1.0, static_cast<double>(bytes)), 0, bytes});
  }
  const std::vector<uint64_t> parts = DivideFairly(room, spare);
  for (size_t i = 0; i < places.size(); ++i) {
    KvBudget& budget = places[i]->budget;
    budget.own_bytes += parts[i];
    budget.fair_bytes = std::max(budget.fair_bytes, budget.own_bytes);
    budget.floor_bytes = std::min(budget.floor_bytes, budget.own_bytes);
  }
}

// Lowering a limit needs no room, raising it does. Wants beyond the cap are cut in proportion.
uint64_t KvBudgets::NextLimit(const Place& place, Claimant& claimant) {
  const uint64_t cap = claimant.quota.cap_bytes;
  if (place.wanted_bytes > 0 && cap == kUnlimited) return place.worker->capacity_bytes;
  const double cut =
      static_cast<double>(cap) / static_cast<double>(std::max<uint64_t>(claimant.wanted_bytes, 1));
  const uint64_t goal = cut >= 1
                            ? place.wanted_bytes
                            : static_cast<uint64_t>(cut * static_cast<double>(place.wanted_bytes));
  const uint64_t charged = place.account->charged_bytes();
  if (goal <= charged) return goal;
  const uint64_t room = cap - std::min(cap, claimant.charged_bytes);
  const uint64_t more = std::min(goal - charged, room);
  claimant.charged_bytes += more;
  return charged + more;
}

}  // namespace sluice::cluster
