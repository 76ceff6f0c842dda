// The manager's ledger and the workers' ledgers together: 300 workers, reports and budgets that are
// half a second late, in virtual time.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <vector>

#include "base/random.h"
#include "cluster/kv_budgets.h"
#include "kv/tenant_ledger.h"

namespace sluice::cluster {
namespace {

constexpr int kWorkers = 300;
constexpr uint64_t kRequest = 8;  // pages; a page is a byte here
constexpr uint64_t kCapacity = 10 * kRequest;
constexpr int kTicksPerHeartbeat = 2;  // a tick is 250 ms
const TenantId kFlood("flood"), kQuiet("quiet");

// One worker's pages, evicted in any order within a tenant.
class Node {
 public:
  // Computes a prompt and keeps its pages; false when there is no room.
  bool Serve(const TenantId& tenant, uint64_t pages) {
    const uint64_t beyond = ledger_.BeyondLimit(tenant, pages);
    if (beyond > ledger_.CachedOf(tenant)) return Refuse(tenant, pages);
    for (uint64_t i = 0; i < beyond; ++i) Evict(tenant, tenant);
    if (free_ + ledger_.EvictableFor(tenant) < pages) return Refuse(tenant, pages);
    while (free_ < pages) {
      const auto loser = ledger_.NextLoser(tenant, pages, {});
      if (!loser.has_value()) return Refuse(tenant, pages);
      Evict(loser->tenant, tenant);
    }
    free_ -= pages;
    ledger_.Take(tenant, pages);
    for (uint64_t i = 0; i < pages; ++i) {
      if (ledger_.MayCache(tenant)) {
        ledger_.BecomeCached(tenant);
      } else {
        ledger_.Free(tenant);
        ++free_;
      }
    }
    return true;
  }

  uint64_t cached(const TenantId& tenant) const { return ledger_.CachedOf(tenant); }
  uint64_t foreign() const { return foreign_; }

  absl::flat_hash_map<TenantId, KvUsage> Report() {
    absl::flat_hash_map<TenantId, KvUsage> usage;
    for (const kv::TenantPages& pages : ledger_.tenants())
      usage[pages.tenant] = {pages.active, pages.cached, pages.refused};
    ledger_.ForgetRefused();
    return usage;
  }
  void Apply(const KvBudgetUpdate& update) {
    kv::TenantBudgets budgets;
    for (const KvBudget& budget : update.budgets) {
      budgets.tenants.push_back({budget.tenant, budget.own_bytes, budget.fair_bytes,
                                 budget.limit_bytes, budget.floor_bytes});
    }
    budgets.rest.own_bytes = kRequest;
    budgets.rest.fair_bytes = kRequest;
    ledger_.SetBudgets(budgets);
    version_ = update.version;
  }
  uint64_t version() const { return version_; }

 private:
  bool Refuse(const TenantId& tenant, uint64_t pages) {
    ledger_.Refuse(tenant, pages);
    return false;
  }
  void Evict(const TenantId& owner, const TenantId& taker) {
    foreign_ += ledger_.CauseOf(owner, taker) == kv::EvictionCause::kForeign ? 1 : 0;
    ledger_.LeaveCached(owner);
    ledger_.Free(owner);
    ++free_;
  }

  kv::TenantLedger ledger_{kCapacity, 1};
  uint64_t free_ = kCapacity;
  uint64_t version_ = 0;
  uint64_t foreign_ = 0;
};

class Cluster {
 public:
  explicit Cluster(absl::flat_hash_map<TenantId, KvQuota> quotas) {
    manager_.SetQuotas(std::move(quotas), {});
    for (int i = 0; i < kWorkers; ++i) manager_.Attach(Id(i), Incarnation(1), kCapacity, kRequest);
  }

  // A quarter of a second: half of the workers report, all get budgets that are as late.
  void Tick() {
    ++ticks_;
    for (int i = ticks_ % kTicksPerHeartbeat; i < kWorkers; i += kTicksPerHeartbeat)
      manager_.Report(Id(i), Incarnation(1), nodes_[static_cast<size_t>(i)].version(),
                      nodes_[static_cast<size_t>(i)].Report());
    late_.push_back(manager_.Divide());
    if (late_.size() < 2) return;
    for (const KvBudgetUpdate& update : late_.front())
      nodes_[static_cast<size_t>(std::stoi(update.worker.value()))].Apply(update);
    late_.pop_front();
  }

  std::vector<Node>& nodes() { return nodes_; }
  KvBudgets& manager() { return manager_; }
  uint64_t Cached(const TenantId& tenant) const {
    uint64_t sum = 0;
    for (const Node& node : nodes_) sum += node.cached(tenant);
    return sum;
  }
  uint64_t Foreign() const {
    uint64_t sum = 0;
    for (const Node& node : nodes_) sum += node.foreign();
    return sum;
  }

 private:
  static WorkerId Id(int i) { return WorkerId(std::to_string(i)); }

  KvBudgets manager_{100};
  std::vector<Node> nodes_{kWorkers};
  std::deque<std::vector<KvBudgetUpdate>> late_;
  int ticks_ = 0;
};

void Flood(Cluster& cluster) {
  for (Node& node : cluster.nodes()) {
    for (int i = 0; i < 3; ++i) node.Serve(kFlood, kRequest);
  }
}

// A floor of two requests over 300 workers is 0.05 of one on each.
TEST(KvBudgetsClusterTest, AFloorSmallerThanARequestPerWorkerServesRequestsWhereverTheyLand) {
  SeededRandom random(7);
  Cluster cluster({{kQuiet, {2 * kRequest, std::numeric_limits<uint64_t>::max(), 1e-3}}});
  for (int i = 0; i < 12; ++i) {
    Flood(cluster);
    cluster.Tick();
  }
  for (uint64_t round = 0; round < 200; ++round) {
    Flood(cluster);
    Node& node = cluster.nodes()[random.Below(kWorkers)];
    ASSERT_TRUE(node.Serve(kQuiet, kRequest))
        << "round " << round << ": at once, not after budgets";
    ASSERT_GE(node.cached(kQuiet), kRequest);
    Flood(cluster);
    cluster.Tick();
    // What it holds below its floor stays, wherever that is.
    ASSERT_GE(cluster.Cached(kQuiet), std::min<uint64_t>(round + 1, 2) * kRequest);
    ASSERT_EQ(cluster.Foreign(), 0u);
  }
}

TEST(KvBudgetsClusterTest, IdleShareIsBorrowedAndCachedSpaceIsBackWithinASecond) {
  const uint64_t half = kWorkers * kCapacity / 2;
  Cluster cluster({{kQuiet, {half, std::numeric_limits<uint64_t>::max(), 1}}});
  for (int i = 0; i < 8; ++i) {
    Flood(cluster);
    cluster.Tick();
  }
  EXPECT_GT(cluster.Cached(kFlood), 2 * half - kWorkers * kRequest) << "nobody else wants it";
  // The owner is back, everywhere: a second later its half is there, in spite of the flood.
  for (int tick = 0; tick < 4; ++tick) {
    Flood(cluster);
    for (Node& node : cluster.nodes()) {
      for (int i = 0; i < 5; ++i) node.Serve(kQuiet, kRequest);
    }
    cluster.Tick();
  }
  EXPECT_GE(cluster.Cached(kQuiet), half - half / 20);
  EXPECT_EQ(cluster.Foreign(), 0u);
  // And the manager knows, one heartbeat later.
  cluster.Tick();
  cluster.Tick();
  EXPECT_EQ(cluster.manager().UsageOf(kQuiet).cached_bytes, cluster.Cached(kQuiet));
  EXPECT_EQ(cluster.manager().UsageOf(kFlood).cached_bytes, cluster.Cached(kFlood));
}

}  // namespace
}  // namespace sluice::cluster
