#include "cluster/tenant_rates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace sluice::cluster {
namespace {

using Charge = TenantRates::Charge;
using Refused = TenantRates::Refused;

const TenantId kA("a");
const TenantId kB("b");

TenantBudgets Budgets(double requests_per_s, double request_burst, double tokens_per_s,
                      double token_burst, uint32_t sequences = 1000) {
  return {{requests_per_s, request_burst}, {tokens_per_s, token_burst}, sequences};
}

class TenantRatesTest : public testing::Test {
 protected:
  std::optional<Charge> Admit(const TenantId& tenant, uint64_t tokens, uint32_t sequences = 1) {
    const auto outcome = rates_.Admit(tenant, tokens, sequences);
    if (const auto* refused = std::get_if<Refused>(&outcome)) {
      refused_ = *refused;
      return std::nullopt;
    }
    return std::get<Charge>(outcome);
  }

  FakeClock clock_;
  TenantRates rates_{clock_};
  Refused refused_;
};

TEST_F(TenantRatesTest, ATenantWithoutLimitsIsNeverRefused) {
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(Admit(kA, 1u << 30, 8));
  EXPECT_FALSE(rates_.Report(kA).requests.has_value());
  EXPECT_FALSE(rates_.Report(kA).tokens.has_value());
}

TEST_F(TenantRatesTest, RequestsComeInABurstAndThenAtTheirRate) {
  rates_.SetBudgets(kA, Budgets(2, 3, 1e9, 1e9));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Admit(kA, 1));
  EXPECT_FALSE(Admit(kA, 1));
  EXPECT_EQ(refused_.limit, RateLimit::kRequests);
  EXPECT_EQ(refused_.retry_after, absl::Milliseconds(500));
  clock_.Advance(refused_.retry_after);
  EXPECT_TRUE(Admit(kA, 1));
  EXPECT_FALSE(Admit(kA, 1));
  EXPECT_TRUE(Admit(kB, 1)) << "another tenant has its own budget";
}

TEST_F(TenantRatesTest, UnusedTokensComeBackAndExcessIsOwed) {
  rates_.SetBudgets(kA, Budgets(1e9, 1e9, 10, 100));
  const auto charge = Admit(kA, 100);
  ASSERT_TRUE(charge);
  EXPECT_FALSE(Admit(kA, 1));
  EXPECT_EQ(refused_.limit, RateLimit::kTokens);
  rates_.Settle(*charge, 30);
  EXPECT_EQ(rates_.Report(kA).tokens->remaining, 70u);
  const auto second = Admit(kA, 10);
  ASSERT_TRUE(second);
  rates_.Settle(*second, 110);  // 70 - 110
  EXPECT_EQ(rates_.Report(kA).tokens->remaining, 0u);
  EXPECT_FALSE(Admit(kA, 10));
  EXPECT_EQ(refused_.retry_after, absl::Seconds(5)) << "40 owed and 10 asked, at 10 a second";
}

TEST_F(TenantRatesTest, ARequestLargerThanTheBurstPassesWhenTheBucketIsFullAndIsPaidForLater) {
  rates_.SetBudgets(kA, Budgets(1e9, 1e9, 10, 100));
  ASSERT_TRUE(Admit(kA, 1000));
  EXPECT_FALSE(Admit(kA, 1));
  clock_.Advance(absl::Seconds(90));
  EXPECT_FALSE(Admit(kA, 1));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Admit(kA, 1));
}

TEST_F(TenantRatesTest, SequencesAreCountedUntilTheirRequestIsSettled) {
  rates_.SetBudgets(kA, Budgets(1e9, 1e9, 1e9, 1e9, 4));
  const auto three = Admit(kA, 1, 3);
  ASSERT_TRUE(three);
  EXPECT_FALSE(Admit(kA, 1, 2));
  EXPECT_EQ(refused_.limit, RateLimit::kSequences);
  EXPECT_TRUE(Admit(kA, 1, 1));
  rates_.Settle(*three, 1);
  EXPECT_EQ(rates_.sequences(kA), 1u);
  EXPECT_FALSE(Admit(kA, 1, 8)) << "more than may run at a time waits for an empty house";
  rates_.Settle(Charge{kA, 1, 1}, 1);
  EXPECT_TRUE(Admit(kA, 1, 8));
}

TEST_F(TenantRatesTest, WhatNeverBeganCostsNothing) {
  rates_.SetBudgets(kA, Budgets(1, 5, 1, 100, 2));
  const auto charge = Admit(kA, 60, 2);
  ASSERT_TRUE(charge);
  rates_.Undo(*charge);
  EXPECT_EQ(rates_.Report(kA).requests->remaining, 5u);
  EXPECT_EQ(rates_.Report(kA).tokens->remaining, 100u);
  EXPECT_EQ(rates_.sequences(kA), 0u);
}

TEST_F(TenantRatesTest, ANewBudgetKeepsWhatIsOwedAndGivesNoFreshBurst) {
  rates_.SetBudgets(kA, Budgets(1, 10, 10, 100));
  ASSERT_TRUE(Admit(kA, 90));
  rates_.SetBudgets(kA, Budgets(1, 10, 10, 1000));
  EXPECT_EQ(rates_.Report(kA).tokens->remaining, 10u);
  rates_.SetBudgets(kA, Budgets(1, 10, 10, 5));
  EXPECT_EQ(rates_.Report(kA).tokens->remaining, 5u);
  rates_.SetBudgets(kA, {});
  EXPECT_TRUE(Admit(kA, 1u << 30));
}

TEST_F(TenantRatesTest, OnlyTenantsThatOweNothingAreForgotten) {
  TenantRates few(clock_, 10);
  few.SetBudgets(kA, Budgets(1, 1, 1, 1));
  ASSERT_TRUE(std::holds_alternative<Charge>(few.Admit(kA, 1, 1)));
  for (int i = 0; i < 100; ++i) {
    few.SetBudgets(TenantId(std::to_string(i)), Budgets(1, 1, 1, 1));
  }
  EXPECT_TRUE(std::holds_alternative<Refused>(few.Admit(kA, 1, 1)));
}

// Whatever is asked, taken and given back in whatever order: over any stretch of time no more is
// used than burst and rate allow, plus the one request that may go below empty.
TEST_F(TenantRatesTest, TheRateHoldsForEveryOrderOfOperations) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SeededRandom random(seed);
    FakeClock clock;
    TenantRates rates(clock);
    rates.SetBudgets(kA, Budgets(5, 20, 100, 500, 16));
    std::vector<Charge> open;
    double used = 0;
    uint64_t admitted = 0;
    uint32_t sequences = 0;
    const absl::Time begin = clock.Now();
    for (int i = 0; i < 5000; ++i) {
      clock.Advance(absl::Milliseconds(static_cast<int64_t>(random.Below(100))));
      if (random.Below(2) == 0) {
        const uint64_t tokens = random.Below(200);
        const auto choices = static_cast<uint32_t>(1 + random.Below(4));
        const auto outcome = rates.Admit(kA, tokens, choices);
        if (const auto* charge = std::get_if<Charge>(&outcome)) {
          open.push_back(*charge);
          ++admitted;
          sequences += choices;
        }
      } else if (!open.empty()) {
        const size_t which = random.Below(open.size());
        const Charge charge = open[which];
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
        const uint64_t tokens = random.Below(charge.tokens + 1);
        rates.Settle(charge, tokens);
        used += static_cast<double>(tokens);
        sequences -= charge.sequences;
      }
      const double seconds = absl::ToDoubleSeconds(clock.Now() - begin);
      ASSERT_LE(used, 500 + 100 * seconds + 1e-6) << "seed " << seed;
      ASSERT_LE(static_cast<double>(admitted), 20 + 5 * seconds + 1e-6) << "seed " << seed;
      ASSERT_EQ(rates.sequences(kA), sequences);
      ASSERT_LE(sequences, 16u);
    }
    EXPECT_GT(used, 0);
  }
}

}  // namespace
}  // namespace sluice::cluster
