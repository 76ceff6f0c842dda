// Several routers and a manager, by hand: nobody gets more than the whole limit, wherever its
// clients call.
#include "cluster/rate_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/random.h"
#include "cluster/tenant_rates.h"

namespace sluice::cluster {
namespace {

const TenantId kA("a");
constexpr absl::Duration kLease = absl::Milliseconds(1500);
constexpr absl::Duration kPeriod = absl::Milliseconds(200);

class Cluster {
 public:
  Cluster(size_t routers, const TenantBudgets& budgets) : budgets_(budgets) {
    for (size_t i = 0; i < routers; ++i) Restart(i);
    ReplaceManager();
  }

  void Restart(size_t router) {
    if (router >= routers_.size()) routers_.resize(router + 1);
    routers_[router] = {++last_id_, std::make_unique<TenantRates>(clock_)};
    routers_[router].rates->SetLeased(true);
  }
  void ReplaceManager() { pools_ = std::make_unique<Pools>(); }

  // As the router does: asks the manager when it would have to refuse.
  std::optional<TenantRates::Charge> Admit(size_t router, uint64_t tokens, uint32_t sequences = 1) {
    TenantRates& rates = *routers_[router].rates;
    rates.SetBudgets(kA, budgets_);
    for (const bool may_ask : {true, false}) {
      const auto outcome = rates.Admit(kA, tokens, sequences);
      if (const auto* charge = std::get_if<TenantRates::Charge>(&outcome)) return *charge;
      refused_ = std::get<TenantRates::Refused>(outcome);
      if (may_ask && !rates.MayAsk(kA)) return std::nullopt;
      if (!may_ask) break;
      rates.Need(kA, tokens, sequences);
      Lease(router);
    }
    rates.ManagerHadNoMore(kA);
    return std::nullopt;
  }

  void Lease(size_t router) {
    for (const TenantUse& use : routers_[router].rates->Uses()) {
      TenantLease lease;
      const uint64_t id = routers_[router].id;
      if (use.requests) lease.requests = pools_->requests.Lease(id, *use.requests, clock_.Now());
      if (use.tokens) lease.tokens = pools_->tokens.Lease(id, *use.tokens, clock_.Now());
      if (use.sequences)
        lease.sequences = pools_->sequences.Lease(id, *use.sequences, clock_.Now());
      routers_[router].rates->Apply(kA, lease);
    }
  }

  // One period, with a report of each router somewhere in it.
  void Pass() {
    clock_.Advance(kPeriod);
    for (size_t i = 0; i < routers_.size(); ++i) Lease(i);
    pools_->requests.Expire(clock_.Now());
    pools_->tokens.Expire(clock_.Now());
    pools_->sequences.Expire(clock_.Now());
  }

  TenantRates& rates(size_t router) { return *routers_[router].rates; }
  const TenantRates::Refused& refused() const { return refused_; }
  FakeClock& clock() { return clock_; }
  RatePool& requests() { return pools_->requests; }

 private:
  struct Pools {
    RatePool requests{false, kLease};
    RatePool tokens{false, kLease};
    RatePool sequences{true, kLease};
  };
  struct Router {
    uint64_t id = 0;
    std::unique_ptr<TenantRates> rates;
  };
  FakeClock clock_;
  const TenantBudgets budgets_;
  uint64_t last_id_ = 0;
  std::vector<Router> routers_;
  std::unique_ptr<Pools> pools_;
  TenantRates::Refused refused_;
};

Budget Unlimited() { return {}; }

TEST(RatePool, OneBurstIsForAllRoutersAndAnyOfThemMayHaveIt) {
  Cluster cluster(2, {{1, 6}, Unlimited()});
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(cluster.Admit(i % 2, 1)) << i;
  for (size_t router : {0u, 1u}) {
    EXPECT_FALSE(cluster.Admit(router, 1));
    EXPECT_EQ(cluster.refused().limit, RateLimit::kRequests);
    EXPECT_GT(cluster.refused().retry_after, absl::ZeroDuration());
    EXPECT_LE(cluster.refused().retry_after, absl::Seconds(1));
    EXPECT_EQ(cluster.rates(router).Report(kA).requests->limit, 6u);
    EXPECT_LE(cluster.rates(router).Report(kA).requests->remaining, 1u) << "held at the other";
  }
  // Alone at one router the whole burst is there again.
  for (int i = 0; i < 31; ++i) cluster.Pass();
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(cluster.Admit(1, 1)) << i;
  EXPECT_FALSE(cluster.Admit(1, 1));
}

// Whatever is asked, where and when, and whatever is given back: in any time from the start no more
// is used than the burst and what came since.
TEST(RatePool, RoutersTogetherStayWithinTheLimit) {
  SeededRandom random(7);
  Cluster cluster(3, {Unlimited(), {100, 500}});
  const absl::Time start = cluster.clock().Now();
  double used = 0;
  std::vector<std::pair<size_t, TenantRates::Charge>> running;
  for (int step = 0; step < 20000; ++step) {
    const size_t router = random.Below(3);
    const uint64_t tokens = 1 + random.Below(120);
    if (auto charge = cluster.Admit(router, tokens)) {
      used += static_cast<double>(tokens);
      running.emplace_back(router, *charge);
    }
    if (!running.empty() && random.Below(3) == 0) {
      const size_t which = random.Below(running.size());
      const auto [where, charge] = running[which];
      const uint64_t back = random.Below(charge.tokens + 1);
      cluster.rates(where).Settle(charge, charge.tokens - back);
      used -= static_cast<double>(back);
      running.erase(running.begin() + static_cast<ptrdiff_t>(which));
    }
    if (random.Below(4) == 0) cluster.Pass();
    const double allowed = 500 + 100 * absl::ToDoubleSeconds(cluster.clock().Now() - start);
    ASSERT_LE(used, allowed + 1e-6) << "step " << step;
  }
  // And it is not wasted: demand was far above the limit.
  const double allowed = 500 + 100 * absl::ToDoubleSeconds(cluster.clock().Now() - start);
  EXPECT_GT(used, 0.95 * allowed);
}

TEST(RatePool, WhatOneRouterDoesNotUseTheOtherHasWithinASecond) {
  Cluster cluster(2, {{100, 100}, Unlimited()});
  const auto flood = [&cluster](size_t router) {
    int admitted = 0;
    while (cluster.Admit(router, 1)) ++admitted;
    return admitted;
  };
  flood(0);
  // Both flooded: each gets its half.
  int parts[2] = {0, 0};
  for (size_t i = 0; i < 100; ++i) {
    cluster.Pass();
    for (size_t router : {i % 2, 1 - i % 2}) parts[router] += flood(router);
  }
  EXPECT_NEAR(parts[0] + parts[1], 2000, 60);
  EXPECT_NEAR(parts[0], parts[1], 200);
  // One is left alone.
  for (int i = 0; i < 5; ++i) cluster.Pass();
  flood(1);
  int alone = 0;
  for (int i = 0; i < 5; ++i) {
    cluster.Pass();
    alone += flood(1);
  }
  EXPECT_NEAR(alone, 100, 5);
}

TEST(RatePool, SequencesAreCountedOverAllRoutersAndComeBackFromOneThatDied) {
  Cluster cluster(2, {Unlimited(), Unlimited(), 4});
  std::vector<TenantRates::Charge> charges;
  for (int i = 0; i < 3; ++i) charges.push_back(*cluster.Admit(0, 1));
  EXPECT_TRUE(cluster.Admit(1, 1));
  EXPECT_FALSE(cluster.Admit(1, 1));
  EXPECT_EQ(cluster.refused().limit, RateLimit::kSequences);
  EXPECT_FALSE(cluster.Admit(0, 1));
  cluster.rates(0).Settle(charges.back(), 1);
  cluster.Pass();
  cluster.Pass();
  EXPECT_TRUE(cluster.Admit(1, 1)) << "one has ended at the other router";
  EXPECT_FALSE(cluster.Admit(1, 9)) << "more than may run at a time waits until nothing runs";
  cluster.Restart(0);
  for (int i = 0; i < 9; ++i) cluster.Pass();
  EXPECT_TRUE(cluster.Admit(1, 1));
  EXPECT_TRUE(cluster.Admit(1, 1));
  EXPECT_FALSE(cluster.Admit(1, 1));
}

TEST(RatePool, AManagerThatWasReplacedLearnsWhatIsLeft) {
  Cluster cluster(2, {{1, 10}, Unlimited()});
  for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(cluster.Admit(i % 2, 1));
  EXPECT_FALSE(cluster.Admit(0, 1));
  cluster.ReplaceManager();
  cluster.Pass();
  int more = 0;
  for (size_t router : {0u, 1u, 0u, 1u}) more += cluster.Admit(router, 1) ? 1 : 0;
  EXPECT_LE(more, 1) << "what was used since a router last heard is not known";
  for (int i = 0; i < 10; ++i) cluster.Pass();
  for (size_t router : {0u, 1u, 0u, 1u}) more += cluster.Admit(router, 1) ? 1 : 0;
  EXPECT_GE(more, 2) << "2.2 s at 1 a second";
  EXPECT_LE(more, 3);
}

// Without a manager each router goes on with its part of the rate, so that together they keep it.
TEST(RatePool, WithoutAManagerRatesStayAsTheyWere) {
  Cluster cluster(2, {{100, 100}, Unlimited()});
  for (int i = 0; i < 20; ++i) {
    cluster.Pass();
    for (size_t router : {0u, 1u}) {
      for (int k = 0; k < 200 && cluster.Admit(router, 1); ++k) {
      }
    }
  }
  for (size_t router : {0u, 1u}) cluster.rates(router).SetLeased(false);
  int admitted = 0;
  for (int i = 0; i < 50; ++i) {
    cluster.clock().Advance(kPeriod);
    for (size_t router : {0u, 1u}) {
      while (cluster.Admit(router, 1)) ++admitted;
    }
  }
  EXPECT_NEAR(admitted, 1000, 150);
  // It is back: no second burst.
  for (size_t router : {0u, 1u}) cluster.rates(router).SetLeased(true);
  cluster.Pass();
  int burst = 0;
  for (size_t router : {0u, 1u}) {
    while (cluster.Admit(router, 1)) ++burst;
  }
  EXPECT_LE(burst, 60);
}

TEST(RatePool, ARouterThatLostItsReplyLosesNothing) {
  RatePool pool(false, kLease);
  const absl::Time now = absl::UnixEpoch();
  const Budget limit{0, 10};
  const LimitUse nothing = {.limit = limit, .needed = 10};
  EXPECT_EQ(pool.Lease(1, nothing, now).change, 10);
  EXPECT_EQ(pool.Lease(2, nothing, now).change, 0);
  // The reply to 1 never came: it still holds nothing, and both need all.
  EXPECT_EQ(pool.Lease(1, nothing, now).change, 5);
  EXPECT_EQ(pool.Lease(2, nothing, now).change, 2.5) << "the rest of what is free is for both";
  // What was overdrawn is owed by the tenant, not by the router.
  const LimitLease lease = pool.Lease(1, {.limit = limit, .used = 20, .held = -15}, now);
  EXPECT_EQ(lease.left, -10);
  EXPECT_EQ(lease.change, 15);
  EXPECT_FALSE(pool.Expire(now));
}

}  // namespace
}  // namespace sluice::cluster
