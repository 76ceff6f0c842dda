#include "kv/tenant_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::kv {
namespace {

constexpr uint64_t kPublicPart = 4;  // a quarter

uint64_t Above(uint64_t value, uint64_t bound) { return value > bound ? value - bound : 0; }

}  // namespace

uint64_t TenantLedger::Account::lent() const { return std::min(cached, Above(held(), parts.own)); }

bool TenantLedger::Rank::operator<(const Rank& other) const {
  if (over_fair != other.over_fair) return over_fair;
  if (excess != other.excess) return excess > other.excess;
  return account->tenant < other.account->tenant;
}

TenantLedger::Rank TenantLedger::RankOf(const Account& account) {
  const uint64_t over_fair = Above(account.held(), account.parts.fair);
  if (over_fair > 0) return {true, over_fair, &account};
  return {false, Above(account.held(), account.parts.own), &account};
}

// A page that is partly within a tenant's own part is within it; one that is partly beyond its
// limit is beyond.
TenantLedger::Parts TenantLedger::ToParts(const TenantBudget& budget) const {
  const auto up = [this](uint64_t bytes) {
    return bytes / page_bytes_ + (bytes % page_bytes_ > 0 ? 1 : 0);
  };
  Parts parts{up(budget.floor_bytes), up(budget.own_bytes), up(budget.fair_bytes),
              budget.limit_bytes / page_bytes_};
  if (budget.tenant.value() == kPublicTenant)
    parts.floor = std::max(parts.floor, pages_total_ / kPublicPart);
  parts.own = std::max(parts.own, parts.floor);
  parts.fair = std::max(parts.fair, parts.own);
  return parts;
}

TenantLedger::Parts TenantLedger::RestOf(const TenantId& tenant) const {
  if (!has_budgets_) return {};
  TenantBudget budget = rest_;
  budget.tenant = tenant;
  return ToParts(budget);
}

const TenantLedger::Account* TenantLedger::Find(const TenantId& tenant) const {
  const auto found = accounts_.find(tenant);
  return found == accounts_.end() ? nullptr : &found->second;
}

TenantLedger::Parts TenantLedger::PartsOf(const TenantId& tenant) const {
  const Account* account = Find(tenant);
  return account == nullptr ? RestOf(tenant) : account->parts;
}

uint64_t TenantLedger::UnmetFloor(const Account& account) const {
  if (!account.listed || account.tenant.value() == kPublicTenant) return 0;
  return Above(account.parts.floor, account.held());
}

void TenantLedger::Enlist(const Account& account) {
  unmet_floors_ += UnmetFloor(account);
  const uint64_t lent = has_budgets_ ? account.lent() : 0;
  if (lent == 0) return;
  losers_.insert(RankOf(account));
  lent_ += lent;
}

void TenantLedger::Delist(const Account& account) {
  unmet_floors_ -= UnmetFloor(account);
  const uint64_t lent = has_budgets_ ? account.lent() : 0;
  if (lent == 0) return;
  losers_.erase(RankOf(account));
  lent_ -= lent;
}

template <typename Change>
void TenantLedger::Update(const TenantId& tenant, Change change) {
  const auto [entry, is_new] = accounts_.try_emplace(tenant);
  Account& account = entry->second;
  if (is_new) {
    account.tenant = tenant;
    account.parts = RestOf(tenant);
  }
  Delist(account);
  holders_ -= account.held() > 0 ? 1 : 0;
  only_refused_ -= account.only_refused() ? 1 : 0;
  change(account);
  holders_ += account.held() > 0 ? 1 : 0;
  only_refused_ += account.only_refused() ? 1 : 0;
  Enlist(account);
  if (account.forgettable()) accounts_.erase(entry);
}

void TenantLedger::SetBudgets(const TenantBudgets& budgets) {
  has_budgets_ = true;
  expired_ = false;
  rest_ = budgets.rest;
  losers_.clear();
  lent_ = 0;
  unmet_floors_ = 0;
  for (auto& [tenant, account] : accounts_) {
    account.listed = false;
    account.parts = RestOf(tenant);
  }
  for (const TenantBudget& budget : budgets.tenants) {
    Account& account = accounts_[budget.tenant];
    account.tenant = budget.tenant;
    account.listed = true;
    account.parts = ToParts(budget);
  }
  absl::erase_if(accounts_, [](const auto& entry) { return entry.second.forgettable(); });
  for (const auto& [tenant, account] : accounts_) Enlist(account);
}

void TenantLedger::Expire() {
  if (!has_budgets_) return;
  expired_ = true;
  rest_.own_bytes = 0;
  losers_.clear();
  lent_ = 0;
  unmet_floors_ = 0;
  for (auto& [tenant, account] : accounts_) {
    if (!account.listed) account.parts = RestOf(tenant);
    Enlist(account);
  }
}

void TenantLedger::Take(const TenantId& tenant, uint64_t pages) {
  if (pages > 0) Update(tenant, [pages](Account& account) { account.active += pages; });
}

void TenantLedger::BecomeCached(const TenantId& tenant) {
  Update(tenant, [](Account& account) {
    SLUICE_CHECK(account.active > 0);
    --account.active;
    ++account.cached;
  });
}

void TenantLedger::LeaveCached(const TenantId& tenant) {
  Update(tenant, [](Account& account) {
    SLUICE_CHECK(account.cached > 0);
    --account.cached;
    ++account.active;
  });
}

void TenantLedger::Free(const TenantId& tenant) {
  Update(tenant, [](Account& account) {
    SLUICE_CHECK(account.active > 0);
    --account.active;
  });
}

void TenantLedger::Recharge(const TenantId& from, const TenantId& to) {
  if (from == to) return;
  Take(to, 1);
  Free(from);
}

uint64_t TenantLedger::LimitOf(const TenantId& tenant) const { return PartsOf(tenant).limit; }

uint64_t TenantLedger::HeldOf(const TenantId& tenant) const {
  const Account* account = Find(tenant);
  return account == nullptr ? 0 : account->held();
}

uint64_t TenantLedger::CachedOf(const TenantId& tenant) const {
  const Account* account = Find(tenant);
  return account == nullptr ? 0 : account->cached;
}

uint64_t TenantLedger::BeyondLimit(const TenantId& tenant, uint64_t more) const {
  return Above(HeldOf(tenant) + more, LimitOf(tenant));
}

uint64_t TenantLedger::KeptFrom(const TenantId& tenant) const {
  const Account* account = Find(tenant);
  return unmet_floors_ - (account == nullptr ? 0 : UnmetFloor(*account));
}

uint64_t TenantLedger::EvictableFor(const TenantId& tenant) const {
  const Account* account = Find(tenant);
  uint64_t pages = lent_;
  if (account != nullptr) pages += account->cached - (has_budgets_ ? account->lent() : 0);
  const uint64_t allowance = Allowance(tenant);
  if (pages >= allowance) return pages;
  for (const auto& [name, other] : accounts_) {
    if (name == tenant) continue;
    pages += std::min(other.cached, Above(other.held(), other.parts.floor)) - other.lent();
  }
  return std::min(pages, allowance);
}

uint64_t TenantLedger::Allowance(const TenantId& tenant) const {
  if (!has_budgets_) return 0;
  const Account* account = Find(tenant);
  if (account != nullptr && account->listed) return 0;
  return Above(PartsOf(tenant).fair, HeldOf(tenant));
}

const TenantLedger::Account* TenantLedger::FurthestAboveFloor(
    const TenantId& taker, const absl::flat_hash_set<TenantId>& spent) const {
  const Account* furthest = nullptr;
  const auto excess = [](const Account& account) {
    return Above(account.held(), account.parts.floor);
  };
  for (const auto& [tenant, account] : accounts_) {
    if (tenant == taker || account.cached == 0 || excess(account) == 0 || spent.contains(tenant))
      continue;
    if (furthest == nullptr || excess(account) > excess(*furthest) ||
        (excess(account) == excess(*furthest) && tenant < furthest->tenant)) {
      furthest = &account;
    }
  }
  return furthest;
}

bool TenantLedger::MayCache(const TenantId& tenant) const {
  if (!has_budgets_) return true;
  const Account* account = Find(tenant);
  const uint64_t held = account == nullptr ? 0 : account->held();
  const Parts parts = PartsOf(tenant);
  const bool listed = account != nullptr && account->listed;
  if (expired_) return held <= (listed ? parts.own : parts.fair);
  return listed ? held <= parts.limit : held <= std::max(parts.fair, parts.own);
}

bool TenantLedger::Borrows(const TenantId& tenant) const {
  const Account* account = Find(tenant);
  return has_budgets_ && account != nullptr && account->held() > account->parts.own;
}

std::optional<TenantLedger::Loser> TenantLedger::NextLoser(
    const TenantId& taker, uint64_t pages, const absl::flat_hash_set<TenantId>& spent) const {
  if (!has_budgets_) return std::nullopt;
  const Account* self = Find(taker);
  const bool self_can = self != nullptr && self->cached > 0 && !spent.contains(taker);
  if (self_can && self->held() + pages > self->parts.fair)
    return Loser{taker, self->held() > self->parts.fair};
  for (const Rank& rank : losers_) {
    if (rank.account == self || spent.contains(rank.account->tenant)) continue;
    return Loser{rank.account->tenant, rank.over_fair};
  }
  if (Allowance(taker) >= pages) {
    const Account* loser = FurthestAboveFloor(taker, spent);
    if (loser != nullptr) return Loser{loser->tenant, false};
  }
  if (self_can) return Loser{taker, false};
  return std::nullopt;
}

EvictionCause TenantLedger::CauseOf(const TenantId& owner, const TenantId& taker) const {
  if (owner == taker) return EvictionCause::kOwn;
  const bool newcomer = Allowance(taker) > 0 && HeldOf(owner) > PartsOf(owner).floor;
  const bool spare = has_budgets_ ? newcomer || Borrows(owner) : OverEqualShare(owner, taker);
  return spare ? EvictionCause::kBorrowed : EvictionCause::kForeign;
}

std::vector<std::pair<TenantId, uint64_t>> TenantLedger::AboveLimit() const {
  std::vector<std::pair<TenantId, uint64_t>> above;
  for (const auto& [tenant, account] : accounts_) {
    const uint64_t pages = std::min(account.cached, Above(account.held(), account.parts.limit));
    if (pages > 0) above.emplace_back(tenant, pages);
  }
  std::sort(above.begin(), above.end());
  return above;
}

void TenantLedger::Refuse(const TenantId& tenant, uint64_t pages) {
  if (Find(tenant) == nullptr && only_refused_ >= kRefusedMax) return;
  Update(tenant, [pages](Account& account) { account.refused = std::max(account.refused, pages); });
}

void TenantLedger::ForgetRefused() {
  for (auto& [tenant, account] : accounts_) account.refused = 0;
  only_refused_ = 0;
  absl::erase_if(accounts_, [](const auto& entry) { return entry.second.forgettable(); });
}

bool TenantLedger::OverEqualShare(const TenantId& tenant, const TenantId& taker) const {
  const Account* owner = Find(tenant);
  if (owner == nullptr) return false;
  const Account* other = Find(taker);
  const size_t sharers = holders_ + (other != nullptr && other->held() > 0 ? 0 : 1);
  return owner->held() * sharers > pages_total_;
}

std::vector<TenantPages> TenantLedger::tenants() const {
  std::vector<TenantPages> tenants;
  tenants.reserve(accounts_.size());
  for (const auto& [tenant, account] : accounts_) {
    if (account.held() == 0 && account.refused == 0) continue;
    tenants.push_back({tenant, account.active, account.cached, account.refused, account.parts.own,
                       std::min(account.parts.limit, pages_total_)});
  }
  return tenants;
}

absl::string_view EvictionCauseName(EvictionCause cause) {
  switch (cause) {
    case EvictionCause::kOwn:
      return "own";
    case EvictionCause::kBorrowed:
      return "borrowed";
    case EvictionCause::kForeign:
      return "foreign";
    case EvictionCause::kPressure:
      return "pressure";
  }
  return "unknown";
}

}  // namespace sluice::kv
