// Pages of one pool by tenant: who holds how many, how many each may hold, who gives way.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"

namespace sluice::kv {

// Holder of the blocks that operators declared public. Up to a quarter of the pool nobody takes
// them, so they stay; beyond that the least useful of them go first.
inline constexpr absl::string_view kPublicTenant = "public";

// What a tenant may hold of one pool. floor <= own <= fair.
struct TenantBudget {
  TenantId tenant;
  uint64_t own_bytes = 0;   // nobody takes these from it, but for newcomers
  uint64_t fair_bytes = 0;  // beyond, it gives up its own cached pages before others'
  uint64_t limit_bytes = std::numeric_limits<uint64_t>::max();  // never more
  uint64_t floor_bytes = 0;                                     // nobody at all takes these from it
};

// Why a cached block was given up, from its tenant's view: it needed the page itself; another
// tenant did, and this one held more than its own part (without budgets: than its equal share of
// the pool), or not more; its limit was lowered.
enum class EvictionCause { kOwn, kBorrowed, kForeign, kPressure };
inline constexpr std::array<EvictionCause, 4> kEvictionCauses = {
    EvictionCause::kOwn, EvictionCause::kBorrowed, EvictionCause::kForeign,
    EvictionCause::kPressure};
// "own", "borrowed", "foreign", "pressure".
absl::string_view EvictionCauseName(EvictionCause cause);

struct TenantBudgets {
  std::vector<TenantBudget> tenants;
  TenantBudget rest;  // of each tenant that is not listed
};

// Pages of one tenant. Active ones include those reserved and those quarantined.
struct TenantPages {
  TenantId tenant;
  uint64_t active = 0;
  uint64_t cached = 0;   // only kept for later
  uint64_t refused = 0;  // most that it asked for at a time and did not get, since ForgetRefused
  uint64_t own = 0;      // nobody takes these from it
  uint64_t limit = 0;    // never more; at most the pool
};

// Plain state without a lock; the pool guards it. Invariant: the sum over tenants of active and
// cached pages is the number of pages that are not free.
//
// Who gives way, once there are budgets: the taker itself as far as it would exceed its fair part;
// then whoever is furthest above his fair part; then whoever is furthest above his own part; then
// the taker itself. Nobody else loses a page that is within his own part, with one exception: a
// newcomer, who has no budget yet, gets the allowance of the rest from whoever is furthest above
// his floor. Without budgets nobody is named: the cache is one.
//
// Cost: O(log tenants) for each change of a tenant's pages and for naming who gives way; O(tenants)
// for what a newcomer gets beyond what others borrow.
class TenantLedger {
 public:
  TenantLedger(uint64_t pages_total, uint64_t page_bytes)
      : pages_total_(pages_total), page_bytes_(page_bytes) {}

  // Replaces all budgets. They hold until others come, or until Expire: then what is borrowed stops
  // growing, and newcomers own nothing, because nobody divides what they have. O(tenants).
  void SetBudgets(const TenantBudgets& budgets);
  void Expire();
  bool has_budgets() const { return has_budgets_; }

  // The life of pages: free -> active -> cached -> active -> ... -> free.
  void Take(const TenantId& tenant, uint64_t pages);
  void BecomeCached(const TenantId& tenant);
  void LeaveCached(const TenantId& tenant);
  void Free(const TenantId& tenant);  // an active one
  // An active page becomes another tenant's.
  void Recharge(const TenantId& from, const TenantId& to);

  // By how many pages `tenant` would exceed its limit with `more` pages.
  uint64_t BeyondLimit(const TenantId& tenant, uint64_t more) const;
  uint64_t LimitOf(const TenantId& tenant) const;
  uint64_t HeldOf(const TenantId& tenant) const;
  uint64_t CachedOf(const TenantId& tenant) const;
  // Pages of others and its own that could be evicted for `tenant`.
  uint64_t EvictableFor(const TenantId& tenant) const;
  // Pages that others lack of their floors: `tenant` may cache blocks in them, but not use them, so
  // that they are there at once when their owners come. Not for the public tenant's.
  uint64_t KeptFrom(const TenantId& tenant) const;
  // Whether another block of `tenant` may be kept when it is not in use any more. False beyond the
  // allowance of a tenant without a budget and, with expired budgets, beyond its own part.
  bool MayCache(const TenantId& tenant) const;
  // Holds more than its own part.
  bool Borrows(const TenantId& tenant) const;

  struct Loser {
    TenantId tenant;
    bool over_fair = false;
  };
  // Who gives up a cached page so that `taker` gets `pages`; nobody without budgets. Those in
  // `spent` have none that can go.
  std::optional<Loser> NextLoser(const TenantId& taker, uint64_t pages,
                                 const absl::flat_hash_set<TenantId>& spent) const;
  // As whose loss `taker` gets a cached page of `owner`.
  EvictionCause CauseOf(const TenantId& owner, const TenantId& taker) const;
  // Tenants above their limit, which has been lowered, and by how many pages.
  std::vector<std::pair<TenantId, uint64_t>> AboveLimit() const;

  // Counted for at most kRefusedMax tenants that hold nothing.
  void Refuse(const TenantId& tenant, uint64_t pages);
  void ForgetRefused();
  static constexpr size_t kRefusedMax = 1000;

  // True if `tenant` holds more than its equal share: the pool divided among the tenants that hold
  // pages and `taker`, who is about to.
  bool OverEqualShare(const TenantId& tenant, const TenantId& taker) const;
  // Every tenant that holds a page or was refused one, in no order.
  std::vector<TenantPages> tenants() const;

 private:
  struct Parts {
    uint64_t floor = 0;
    uint64_t own = 0;
    uint64_t fair = 0;
    uint64_t limit = std::numeric_limits<uint64_t>::max();
  };
  struct Account {
    TenantId tenant;
    uint64_t active = 0;
    uint64_t cached = 0;
    uint64_t refused = 0;
    bool listed = false;  // has a budget of its own
    Parts parts;
    uint64_t held() const { return active + cached; }
    bool only_refused() const { return held() == 0 && refused > 0; }
    bool forgettable() const { return held() == 0 && refused == 0 && !listed; }
    // Cached pages that others may take.
    uint64_t lent() const;
  };
  // Sorts those who give way first to the front.
  struct Rank {
    bool over_fair;
    uint64_t excess;
    const Account* account;
    bool operator<(const Rank& other) const;
  };

  Parts ToParts(const TenantBudget& budget) const;
  // What a tenant without a budget may still take of its allowance.
  uint64_t Allowance(const TenantId& tenant) const;
  const Account* FurthestAboveFloor(const TenantId& taker,
                                    const absl::flat_hash_set<TenantId>& spent) const;
  Parts RestOf(const TenantId& tenant) const;
  const Account* Find(const TenantId& tenant) const;
  Parts PartsOf(const TenantId& tenant) const;
  static Rank RankOf(const Account& account);
  template <typename Change>
  void Update(const TenantId& tenant, Change change);
  uint64_t UnmetFloor(const Account& account) const;
  void Enlist(const Account& account);
  void Delist(const Account& account);

  const uint64_t pages_total_;
  const uint64_t page_bytes_;
  bool has_budgets_ = false;
  bool expired_ = false;
  TenantBudget rest_;
  absl::node_hash_map<TenantId, Account> accounts_;
  absl::btree_set<Rank> losers_;  // with budgets: whoever has cached pages that others may take
  uint64_t lent_ = 0;             // of all losers
  uint64_t unmet_floors_ = 0;     // of all accounts
  size_t holders_ = 0;            // tenants that hold a page
  size_t only_refused_ = 0;       // accounts that hold nothing and were refused
};

}  // namespace sluice::kv
