#include "cluster/kv_budgets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "base/random.h"

namespace sluice::cluster {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
const Incarnation kFirst{1};

TenantId Tenant(int number) { return TenantId("t" + std::to_string(number)); }
WorkerId WorkerOf(int number) { return WorkerId("w" + std::to_string(number)); }
KvUsage Held(uint64_t cached) { return {0, cached, 0}; }

KvBudget Find(const std::vector<KvBudgetUpdate>& updates, const WorkerId& worker,
              const TenantId& tenant) {
  for (const KvBudgetUpdate& update : updates) {
    if (update.worker != worker) continue;
    for (const KvBudget& budget : update.budgets) {
      if (budget.tenant == tenant) return budget;
    }
  }
  return {tenant};
}

TEST(KvBudgetsTest, SharesFollowWeightsAndFloorsAndIdleSpaceIsLent) {
  KvBudgets ledger(100);
  ledger.SetQuotas({{Tenant(1), {0, kUnlimited, 1}},
                    {Tenant(2), {0, kUnlimited, 3}},
                    {Tenant(3), {200, kUnlimited, 1}}},
                   {});
  ledger.Attach(WorkerOf(1), kFirst, 1000, 10);
  ledger.Report(WorkerOf(1), kFirst, 0, {{Tenant(1), Held(700)}, {Tenant(2), Held(100)}});
  const auto updates = ledger.Divide();
  // Tenant 3 is away: its 200 stay in reserve, 800 are divided 1:3.
  const KvBudget borrower = Find(updates, WorkerOf(1), Tenant(1));
  EXPECT_EQ(borrower.own_bytes, 200u);
  // What tenant 2 does not use (it may grow by one request) is tenant 1's until it is.
  EXPECT_EQ(borrower.fair_bytes, 710u);
  const KvBudget owner = Find(updates, WorkerOf(1), Tenant(2));
  EXPECT_EQ(owner.own_bytes, 600u) << "a burst does not wait for new budgets";
  EXPECT_EQ(owner.fair_bytes, 600u);

  // It returns with a request that finds no room.
  ledger.Report(WorkerOf(1), kFirst, 1, {{Tenant(1), Held(900)}, {Tenant(3), {0, 0, 150}}});
  EXPECT_GE(Find(ledger.Divide(), WorkerOf(1), Tenant(3)).own_bytes, 150u);
}

TEST(KvBudgetsTest, AFloorSmallerThanARequestPerWorkerServesRequestsWhereTheyLand) {
  constexpr int kWorkers = 300;
  constexpr uint64_t kRequest = 64;
  KvBudgets ledger(100);
  ledger.SetQuotas({{Tenant(1), {2 * kRequest, kUnlimited, 1e-6}}}, {});
  for (int i = 0; i < kWorkers; ++i) {
    ledger.Attach(WorkerOf(i), kFirst, 10 * kRequest, kRequest);
    ledger.Report(WorkerOf(i), kFirst, 0, {{Tenant(2), Held(10 * kRequest)}});
  }
  ledger.Report(WorkerOf(7), kFirst, 0,
                {{Tenant(1), {0, 0, kRequest}}, {Tenant(2), Held(10 * kRequest)}});
  ledger.Report(WorkerOf(8), kFirst, 0,
                {{Tenant(1), {0, 0, kRequest}}, {Tenant(2), Held(10 * kRequest)}});
  const auto updates = ledger.Divide();
  EXPECT_GE(Find(updates, WorkerOf(7), Tenant(1)).own_bytes, kRequest);
  EXPECT_GE(Find(updates, WorkerOf(8), Tenant(1)).own_bytes, kRequest);
  EXPECT_EQ(Find(updates, WorkerOf(9), Tenant(1)).own_bytes, 0u);
}

TEST(KvBudgetsTest, ALimitMovesOnlyAfterTheLowerOneIsAcknowledged) {
  KvBudgets ledger(100);
  ledger.SetQuotas({{Tenant(1), {0, 100, 1}}}, {});
  for (int i = 1; i <= 2; ++i) ledger.Attach(WorkerOf(i), kFirst, 1000, 50);
  ledger.Report(WorkerOf(1), kFirst, 0, {{Tenant(1), Held(50)}});
  EXPECT_EQ(Find(ledger.Divide(), WorkerOf(1), Tenant(1)).limit_bytes, 100u);

  ledger.Report(WorkerOf(1), kFirst, 1, {});
  ledger.Report(WorkerOf(2), kFirst, 1, {{Tenant(1), {0, 0, 50}}});
  auto updates = ledger.Divide();
  EXPECT_EQ(Find(updates, WorkerOf(1), Tenant(1)).limit_bytes, 0u);
  EXPECT_EQ(Find(updates, WorkerOf(2), Tenant(1)).limit_bytes, 0u);
  EXPECT_EQ(ledger.ChargedBytes(Tenant(1)), 100u);

  ledger.Report(WorkerOf(1), kFirst, 2, {});
  updates = ledger.Divide();
  EXPECT_EQ(Find(updates, WorkerOf(2), Tenant(1)).limit_bytes, 100u);
}

TEST(KvBudgetsTest, ASilentWorkerStaysChargedUntilItIsDead) {
  KvBudgets ledger(100);
  ledger.Attach(WorkerOf(1), kFirst, 1000, 50);
  ledger.Report(WorkerOf(1), kFirst, 0, {{Tenant(1), {30, 40, 0}}});
  for (int i = 0; i < 100; ++i) ledger.Divide();
  EXPECT_EQ(ledger.UsageOf(Tenant(1)).held_bytes(), 70u);
  EXPECT_LE(ledger.Divide().size(), 0u) << "it acknowledges nothing";
  ledger.Dead(WorkerOf(1), Incarnation(2));
  EXPECT_EQ(ledger.UsageOf(Tenant(1)).held_bytes(), 70u) << "another process died";
  ledger.Dead(WorkerOf(1), kFirst);
  EXPECT_EQ(ledger.ChargedBytes(Tenant(1)), 0u);
}

TEST(KvBudgetsTest, HostileReportsAreBounded) {
  KvBudgets ledger(4);
  ledger.Attach(WorkerOf(1), kFirst, 1000, 50);
  absl::flat_hash_map<TenantId, KvUsage> usage;
  for (int i = 0; i < 1000; ++i) usage[Tenant(i)] = {kUnlimited, kUnlimited, kUnlimited};
  ledger.Report(WorkerOf(1), kFirst, kUnlimited, usage);
  ledger.Report(WorkerOf(9), kFirst, 1, usage);
  const auto updates = ledger.Divide();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_LE(updates[0].budgets.size(), 5u);
}

// Workers that obey what they got, over messages that are late: tenants come, grow and go, caps
// change hands, workers restart.
class RandomCluster {
 public:
  explicit RandomCluster(uint64_t seed) : random_(seed), ledger_(100) {
    absl::flat_hash_map<TenantId, KvQuota> quotas;
    for (int t = 0; t < kTenants; ++t) {
      quotas[Tenant(t)] = {random_.Below(2) * 300, random_.Below(2) == 0 ? kUnlimited : kCap,
                           1 + static_cast<double>(random_.Below(4))};
    }
    quotas_ = quotas;
    ledger_.SetQuotas(std::move(quotas), {});
    for (int w = 0; w < kWorkers; ++w) Restart(w);
  }

  void Step() {
    const int w = static_cast<int>(random_.Below(kWorkers));
    switch (random_.Below(8)) {
      case 0:
        Deliver();
        break;
      case 1:
      case 2:
        Report(w);
        break;
      case 3:
        if (random_.Below(50) == 0) Restart(w);
        if (random_.Below(10) == 0) home_ = w;
        break;
      default:
        Use(w, Tenant(static_cast<int>(random_.Below(kTenants))));
    }
    Check();
  }

 private:
  static constexpr int kWorkers = 4;
  static constexpr int kTenants = 5;
  static constexpr uint64_t kCapacity = 1000;
  static constexpr uint64_t kCap = 700;
  struct Process {
    uint64_t incarnation = 0;
    uint64_t version = 0;
    std::map<TenantId, uint64_t> held;
    std::map<TenantId, uint64_t> refused;
    std::map<TenantId, KvBudget> budgets;
    std::deque<KvBudgetUpdate> late;
  };

  void Restart(int w) {
    Process& process = processes_[w];
    process = Process{process.incarnation + 1, 0, {}, {}, {}, {}};
    ledger_.Attach(WorkerOf(w), Incarnation(process.incarnation), kCapacity, 40);
  }

  void Use(int w, const TenantId& tenant) {
    Process& process = processes_[w];
    uint64_t& held = process.held[tenant];
    // Requests come where the tenants are at home just now, so limits have to follow.
    if (random_.Below(10) < (w == home_ ? 1 : 4)) {
      held -= random_.Below(held / 4 + 1);
      return;
    }
    uint64_t room = kCapacity;
    for (const auto& [other, bytes] : process.held) room -= bytes;
    const uint64_t wanted = 1 + random_.Below(120);
    const auto budget = process.budgets.find(tenant);
    const uint64_t limit = budget == process.budgets.end() ? 0 : budget->second.limit_bytes;
    if (wanted <= room && held + wanted <= limit) {
      held += wanted;
    } else {
      process.refused[tenant] += wanted;
    }
  }

  void Report(int w) {
    Process& process = processes_[w];
    absl::flat_hash_map<TenantId, KvUsage> usage;
    for (const auto& [tenant, held] : process.held) usage[tenant].cached_bytes = held;
    for (const auto& [tenant, refused] : process.refused) usage[tenant].refused_bytes = refused;
    process.refused.clear();
    ledger_.Report(WorkerOf(w), Incarnation(process.incarnation), process.version, usage);
  }

  void Deliver() {
    for (KvBudgetUpdate& update : ledger_.Divide()) {
      CheckUpdate(update);
      for (auto& [w, process] : processes_) {
        if (WorkerOf(w) == update.worker) process.late.push_back(std::move(update));
      }
    }
    for (auto& [w, process] : processes_) {
      while (!process.late.empty() && random_.Below(2) > 0) {
        process.budgets.clear();
        process.version = process.late.front().version;
        for (const KvBudget& budget : process.late.front().budgets)
          process.budgets[budget.tenant] = budget;
        process.late.pop_front();
      }
    }
  }

  void CheckUpdate(const KvBudgetUpdate& update) {
    uint64_t own = 0;
    for (const KvBudget& budget : update.budgets) {
      own += budget.own_bytes;
      ASSERT_LE(budget.floor_bytes, budget.own_bytes);
      ASSERT_LE(budget.own_bytes, budget.fair_bytes);
    }
    ASSERT_LE(own, kCapacity);
  }

  void Check() {
    for (int t = 0; t < kTenants; ++t) {
      uint64_t held = 0;
      for (const auto& [w, process] : processes_) {
        const auto found = process.held.find(Tenant(t));
        if (found != process.held.end()) held += found->second;
      }
      ASSERT_LE(held, quotas_.at(Tenant(t)).cap_bytes);
    }
  }

  SeededRandom random_;
  KvBudgets ledger_;
  absl::flat_hash_map<TenantId, KvQuota> quotas_;
  std::map<int, Process> processes_;
  int home_ = 0;
};

TEST(KvBudgetsTest, ObedientWorkersNeverHoldMoreThanTheCapWhateverTheOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RandomCluster cluster(seed);
    for (int step = 0; step < 2000 && !testing::Test::HasFatalFailure(); ++step) cluster.Step();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
  }
}

// Who holds no more than its floor over the cluster keeps it on every worker.
TEST(KvBudgetsTest, WhatIsBelowTheFloorIsOwnEverywhere) {
  SeededRandom random(3);
  for (int round = 0; round < 500; ++round) {
    KvBudgets ledger(100);
    const uint64_t floor = 1 + random.Below(800);
    ledger.SetQuotas({{Tenant(0), {floor, kUnlimited, 0.001}}}, {});
    uint64_t left = floor;
    std::map<int, uint64_t> held;
    for (int w = 0; w < 4; ++w) {
      held[w] = std::min<uint64_t>(random.Below(left + 1), 1000);
      left -= held[w];
      ledger.Attach(WorkerOf(w), kFirst, 1000, 1 + random.Below(100));
      ledger.Report(WorkerOf(w), kFirst, 0,
                    {{Tenant(0), Held(held[w])},
                     {Tenant(1), Held((1000 - held[w]) / 2)},
                     {Tenant(2), {0, (1000 - held[w]) / 2, 5000}}});
    }
    const auto updates = ledger.Divide();
    for (int w = 0; w < 4; ++w)
      ASSERT_GE(Find(updates, WorkerOf(w), Tenant(0)).own_bytes + 1, held[w]) << "round " << round;
  }
}

}  // namespace
}  // namespace sluice::cluster
