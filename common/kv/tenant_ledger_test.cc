#include "kv/tenant_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"

namespace sluice::kv {
namespace {

constexpr uint64_t kPageBytes = 100;
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
const TenantId kA("a"), kB("b"), kC("c");

TenantBudget Budget(const TenantId& tenant, uint64_t own, uint64_t fair,
                    uint64_t limit = kUnlimited) {
  return {tenant, own * kPageBytes, fair * kPageBytes,
          limit == kUnlimited ? kUnlimited : limit * kPageBytes};
}

void Cache(TenantLedger& ledger, const TenantId& tenant, uint64_t pages) {
  ledger.Take(tenant, pages);
  for (uint64_t i = 0; i < pages; ++i) ledger.BecomeCached(tenant);
}

std::string LoserOf(const TenantLedger& ledger, const TenantId& taker, uint64_t pages,
                    const absl::flat_hash_set<TenantId>& spent = {}) {
  const auto loser = ledger.NextLoser(taker, pages, spent);
  return loser.has_value() ? loser->tenant.value() : "nobody";
}

TEST(TenantLedgerTest, WhoIsFurthestAboveHisFairPartGivesWayFirstThenWhoIsAboveHisOwn) {
  TenantLedger ledger(100, kPageBytes);
  ledger.SetBudgets({{Budget(kA, 10, 20), Budget(kB, 10, 30), Budget(kC, 5, 10)}, {}});
  Cache(ledger, kA, 25);
  Cache(ledger, kB, 40);
  EXPECT_EQ(LoserOf(ledger, kC, 5), "b") << "10 above against 5 above";
  EXPECT_EQ(LoserOf(ledger, kC, 5, {kB}), "a");
  EXPECT_EQ(LoserOf(ledger, kA, 1), "a") << "it is over its fair part itself";
  for (int i = 0; i < 12; ++i) {
    ledger.LeaveCached(kB);
    ledger.Free(kB);
  }
  EXPECT_EQ(LoserOf(ledger, kC, 5), "a") << "5 above fair goes before 18 above own";
  EXPECT_EQ(LoserOf(ledger, kC, 5, {kA}), "b");
  for (int i = 0; i < 18; ++i) {
    ledger.LeaveCached(kB);
    ledger.Free(kB);
  }
  EXPECT_EQ(LoserOf(ledger, kC, 5, {kA}), "nobody") << "b holds what is its own";
  EXPECT_EQ(LoserOf(ledger, kB, 5, {kA}), "b") << "but itself may replace it";
  EXPECT_EQ(ledger.EvictableFor(kC), 15u);
  EXPECT_EQ(ledger.EvictableFor(kB), 25u);
}

TEST(TenantLedgerTest, ATenantWithoutABudgetHasTheAllowanceOfTheRest) {
  TenantLedger ledger(100, kPageBytes);
  EXPECT_TRUE(ledger.MayCache(kC)) << "without budgets there is no bound";
  ledger.SetBudgets({{Budget(kA, 10, 20, 30)}, Budget({}, 0, 4, 8)});
  EXPECT_EQ(ledger.BeyondLimit(kC, 8), 0u);
  EXPECT_EQ(ledger.BeyondLimit(kC, 9), 1u);
  Cache(ledger, kC, 4);
  EXPECT_TRUE(ledger.MayCache(kC));
  ledger.Take(kC, 1);
  EXPECT_FALSE(ledger.MayCache(kC));
  EXPECT_EQ(LoserOf(ledger, kA, 1), "c");
  ledger.Take(kA, 20);
  EXPECT_TRUE(ledger.MayCache(kA));
  ledger.Expire();
  EXPECT_FALSE(ledger.MayCache(kA)) << "what is borrowed does not grow";
  EXPECT_EQ(ledger.BeyondLimit(kA, 10), 0u) << "requests are served on";
}

TEST(TenantLedgerTest, ANewcomerGetsItsAllowanceFromWhatIsAboveFloors) {
  TenantLedger ledger(100, kPageBytes);
  TenantBudget a = Budget(kA, 60, 60);
  a.floor_bytes = 30 * kPageBytes;
  TenantBudget b = Budget(kB, 40, 40);
  b.floor_bytes = 38 * kPageBytes;
  ledger.SetBudgets({{a, b}, Budget({}, 0, 8)});
  Cache(ledger, kA, 60);
  Cache(ledger, kB, 40);
  EXPECT_EQ(ledger.EvictableFor(kC), 8u);
  EXPECT_EQ(LoserOf(ledger, kC, 8), "a");
  EXPECT_EQ(LoserOf(ledger, kC, 8, {kA}), "b");
  EXPECT_EQ(ledger.CauseOf(kA, kC), EvictionCause::kBorrowed);
  EXPECT_EQ(LoserOf(ledger, kC, 9), "nobody");
  EXPECT_EQ(ledger.CauseOf(kA, kB), EvictionCause::kForeign);
}

TEST(TenantLedgerTest, PagesInPartBelongToTheOwnerAndNotToTheLimit) {
  TenantLedger ledger(100, kPageBytes);
  ledger.SetBudgets({{{kA, 101, 101, 399}}, {}});
  ledger.Take(kA, 2);
  EXPECT_FALSE(ledger.Borrows(kA));
  ledger.Take(kA, 1);
  EXPECT_TRUE(ledger.Borrows(kA));
  EXPECT_EQ(ledger.BeyondLimit(kA, 1), 1u);
}

TEST(TenantLedgerTest, PublicBlocksKeepAQuarterOfThePool) {
  TenantLedger ledger(100, kPageBytes);
  const TenantId all{std::string(kPublicTenant)};
  ledger.SetBudgets({{Budget(kA, 50, 50)}, {}});
  Cache(ledger, all, 25);
  EXPECT_EQ(LoserOf(ledger, kA, 1), "nobody");
  Cache(ledger, all, 1);
  EXPECT_EQ(LoserOf(ledger, kA, 1), "public");
}

TEST(TenantLedgerTest, RefusalsAreBoundedAndForgotten) {
  TenantLedger ledger(100, kPageBytes);
  for (int i = 0; i < 5000; ++i) ledger.Refuse(TenantId(absl::StrCat("t", i)), 3);
  EXPECT_EQ(ledger.tenants().size(), TenantLedger::kRefusedMax);
  ledger.ForgetRefused();
  EXPECT_TRUE(ledger.tenants().empty());
  ledger.Refuse(kA, 3);
  ledger.Refuse(kA, 2);
  EXPECT_EQ(ledger.tenants()[0].refused, 3u);
}

TEST(TenantLedgerTest, EqualSharesCountWhoeverHoldsAPageAndTheTaker) {
  TenantLedger ledger(8, kPageBytes);
  ledger.Take(kA, 2);
  EXPECT_FALSE(ledger.OverEqualShare(kA, kB));
  ledger.Take(kA, 3);
  EXPECT_FALSE(ledger.OverEqualShare(kA, kA));
  EXPECT_TRUE(ledger.OverEqualShare(kA, kB));
  EXPECT_FALSE(ledger.OverEqualShare(kC, kA));
}

// Requests of several tenants over one pool and index, with budgets that come, change and expire.
// What is expected of the ledger follows from the leases held here and from the reported changes
// alone.
class RandomPool {
 public:
  explicit RandomPool(uint64_t seed) : random_(seed) {
    LayoutSpec spec;
    spec.layers = 1;
    spec.kv_heads = 1;
    spec.head_dim = 16;
    const PageLayout layout = *PageLayout::Make(spec);
    page_bytes_ = layout.page_bytes();
    const size_t bytes = kPages * page_bytes_;
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)));
    pool_ = *PagePool::Create({memory_.get(), bytes}, layout, {});
    index_ = PrefixIndex::Create(*pool_);
    index_->OnEvicted([this](const TenantId& tenant, EvictionCause cause) {
      ++evictions_[cause];
      if (has_budgets_ && cause == EvictionCause::kForeign)
        ADD_FAILURE() << tenant << " lost a block";
    });
    SetBudgets();
  }

  void Step() {
    const TenantId tenant = tenants_[random_.Below(kTenants)];
    const uint64_t kind = random_.Below(1000);
    if (kind < 2) {
      SetBudgets();
    } else if (kind < 4) {
      pool_->ExpireBudgets();
      expired_ = true;
    } else if (kind < 10) {
      quarantines_.clear();
    } else if (kind < 600 && running_.size() < kRunning) {
      Begin(tenant);
    } else if (!running_.empty()) {
      End(random_.Below(running_.size()));
    }
  }

  void Check() {
    Apply("");
    std::map<std::string, std::pair<uint64_t, uint64_t>> expected;
    for (const auto& [index, page] : pages_) {
      auto& [active, cached] = expected[page.tenant.value()];
      ++(page.refs > 0 ? active : cached);
    }
    std::map<std::string, std::pair<uint64_t, uint64_t>> counted;
    for (const TenantPages& pages : pool_->tenants()) {
      if (pages.active + pages.cached > 0)
        counted[pages.tenant.value()] = {pages.active, pages.cached};
    }
    ASSERT_EQ(counted, expected);
  }

  void Drain() {
    while (!running_.empty()) End(0);
    quarantines_.clear();
    index_->Clear();
    Apply("");
    pool_->TakeTenants();
    EXPECT_TRUE(pool_->tenants().empty());
    EXPECT_EQ(pool_->counts().free, kPages);
    EXPECT_TRUE(pages_.empty());
  }

  uint64_t evictions(EvictionCause cause) { return evictions_[cause]; }
  uint64_t refusals() const { return refusals_; }

 private:
  static constexpr size_t kPages = 64;
  static constexpr size_t kTenants = 5;
  static constexpr size_t kRunning = 12;
  static constexpr size_t kChains = 6;  // prompts that a tenant repeats
  struct Page {
    TenantId tenant;
    uint32_t refs = 0;
    bool cached = false;
  };
  struct Sequence {
    TenantId tenant;
    std::vector<BlockKey> keys;
    std::vector<PageLease> pages;
  };

  uint64_t Held(const TenantId& tenant) const { return held_.count(tenant) ? held_.at(tenant) : 0; }
  uint64_t Pages(uint64_t bytes) const { return (bytes + page_bytes_ - 1) / page_bytes_; }
  TenantBudget BudgetOf(const TenantId& tenant) const {
    const auto found = budgets_.find(tenant);
    return found == budgets_.end() ? rest_ : found->second;
  }

  void SetBudgets() {
    TenantBudgets budgets;
    budgets_.clear();
    uint64_t left = kPages;
    for (const TenantId& tenant : tenants_) {
      if (random_.Below(5) == 0) continue;
      const uint64_t own = random_.Below(left / 2 + 1);
      left -= own;
      const uint64_t fair = own + random_.Below(20);
      budgets.tenants.push_back({tenant, own * page_bytes_, fair * page_bytes_,
                                 random_.Below(2) ? kUnlimited : (fair + 3) * page_bytes_,
                                 random_.Below(own + 1) * page_bytes_});
      budgets_[tenant] = budgets.tenants.back();
    }
    budgets.rest = rest_ = {
        {}, 3 * page_bytes_, 4 * page_bytes_, random_.Below(2) ? kUnlimited : 20 * page_bytes_};
    pool_->SetBudgets(budgets);
    has_budgets_ = true;
    expired_ = false;
    index_->TrimToLimits();
  }

  // Takes note of what the index reports: a page that leaves the cache and is not in use is free.
  // Whoever else than `taker` loses one must have had more than its own part.
  void Apply(const std::string& taker) {
    uint64_t sequence = 0;
    for (const BlockChange& change : index_->TakeChanges(&sequence)) {
      if (!change.removed) continue;
      const auto known = cached_.find(change.key);
      ASSERT_TRUE(known != cached_.end());
      Page& page = pages_.at(known->second);
      page.cached = false;
      if (page.refs == 0) {
        if (!taker.empty() && page.tenant.value() != taker) {
          const TenantBudget budget = BudgetOf(page.tenant);
          const bool newcomer = budgets_.count(TenantId(taker)) == 0;
          const bool own = !newcomer && !(expired_ && budgets_.count(page.tenant) == 0);
          ASSERT_GT(Held(page.tenant), Pages(own ? budget.own_bytes : budget.floor_bytes))
              << page.tenant;
        }
        --held_[page.tenant];
        pages_.erase(known->second);
      }
      cached_.erase(known);
    }
  }

  void Begin(const TenantId& tenant) {
    const size_t blocks = 1 + random_.Below(6);
    const uint64_t chain = random_.Below(kChains);
    Sequence sequence{tenant, {}, {}};
    for (size_t i = 0; i < blocks; ++i)
      sequence.keys.push_back(BlockKey(Id128{chain + 1, absl::HashOf(tenant.value(), i)}));
    sequence.pages = index_->Find(sequence.keys);
    for (const PageLease& page : sequence.pages) ++pages_.at(page.ref().index.value()).refs;
    const size_t missing = blocks - sequence.pages.size();
    Apply("");
    auto fresh = pool_->Allocate(missing, {}, tenant);
    Apply(tenant.value());
    if (!fresh.ok()) {
      ++refusals_;
      EXPECT_EQ(fresh.status().code(), absl::StatusCode::kResourceExhausted);
      running_.push_back(std::move(sequence));
      return End(running_.size() - 1);
    }
    for (PageLease& page : *fresh) {
      pages_[page.ref().index.value()] = {tenant, 1, false};
      sequence.pages.push_back(std::move(page));
    }
    held_[tenant] += missing;
    if (missing > 0) {
      ASSERT_LE(Held(tenant) * page_bytes_, BudgetOf(tenant).limit_bytes);
    }
    running_.push_back(std::move(sequence));
    Publish(running_.back());
  }

  void Publish(Sequence& sequence) {
    if (random_.Below(4) == 0) return;
    for (size_t i = 0; i < sequence.keys.size(); ++i) {
      const bool known = cached_.count(sequence.keys[i]) > 0;
      index_->Insert(sequence.keys[i], i == 0 ? BlockKey() : sequence.keys[i - 1],
                     sequence.pages[i], sequence.tenant);
      if (known || index_->Count({&sequence.keys[i], 1}) == 0) continue;
      cached_[sequence.keys[i]] = sequence.pages[i].ref().index.value();
      pages_.at(sequence.pages[i].ref().index.value()).cached = true;
    }
  }

  void End(size_t at) {
    Sequence sequence = std::move(running_[at]);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(at));
    Apply("");
    if (random_.Below(50) == 0) Quarantine(sequence);
    for (PageLease& lease : sequence.pages) {
      if (!lease.valid()) continue;
      const uint32_t index = lease.ref().index.value();
      lease.Reset();
      Unuse(index);
    }
  }

  // Pages of its own only; they are free when the quarantine ends.
  void Quarantine(Sequence& sequence) {
    std::vector<PageLease> given_up;
    for (PageLease& lease : sequence.pages) {
      const Page& page = pages_.at(lease.ref().index.value());
      if (page.refs == 1 && !page.cached) given_up.push_back(std::move(lease));
    }
    std::vector<uint32_t> indices;
    for (const PageLease& lease : given_up) indices.push_back(lease.ref().index.value());
    quarantines_.clear();
    quarantines_.push_back({this, std::move(indices), pool_->QuarantinePages(std::move(given_up))});
  }

  void Unuse(uint32_t index) {
    Page& page = pages_.at(index);
    if (--page.refs > 0 || page.cached) return;
    --held_[page.tenant];
    pages_.erase(index);
  }

  struct Ticket {
    Ticket(RandomPool* owner, std::vector<uint32_t> pages, PagePool::Quarantine q)
        : pool(owner), indices(std::move(pages)), quarantine(std::move(q)) {}
    Ticket(Ticket&& other) noexcept
        : pool(std::exchange(other.pool, nullptr)),
          indices(std::move(other.indices)),
          quarantine(std::move(other.quarantine)) {}
    ~Ticket() {
      if (pool == nullptr) return;
      quarantine = {};
      for (uint32_t index : indices) pool->Unuse(index);
    }
    RandomPool* pool;
    std::vector<uint32_t> indices;
    PagePool::Quarantine quarantine;
  };
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };

  SeededRandom random_;
  const std::vector<TenantId> tenants_ = {TenantId("t0"), TenantId("t1"), TenantId("t2"),
                                          TenantId("t3"), TenantId("t4")};
  uint64_t page_bytes_ = 0;
  std::unique_ptr<uint8_t, Free> memory_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PrefixIndex> index_;
  bool has_budgets_ = false;
  bool expired_ = false;
  std::map<TenantId, TenantBudget> budgets_;
  TenantBudget rest_;
  std::map<uint32_t, Page> pages_;  // that are not free
  std::map<BlockKey, uint32_t> cached_;
  std::map<TenantId, uint64_t> held_;
  std::vector<Sequence> running_;
  std::vector<Ticket> quarantines_;
  std::map<EvictionCause, uint64_t> evictions_;
  uint64_t refusals_ = 0;
};

TEST(TenantLedgerTest, LedgerAndLivePagesAgreeOverAMillionRandomOperations) {
  uint64_t steps = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    RandomPool pool(seed);
    for (int i = 0; i < 250'000 && !testing::Test::HasFatalFailure(); ++i, ++steps) {
      pool.Step();
      if (i % 10 == 0) pool.Check();
    }
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed << " step " << steps;
    EXPECT_GT(pool.evictions(EvictionCause::kOwn), 100u);
    EXPECT_GT(pool.evictions(EvictionCause::kBorrowed), 100u);
    EXPECT_GT(pool.evictions(EvictionCause::kPressure), 100u);
    EXPECT_GT(pool.refusals(), 100u);
    pool.Drain();
  }
}

}  // namespace
}  // namespace sluice::kv
