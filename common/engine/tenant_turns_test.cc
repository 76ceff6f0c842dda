#include "engine/tenant_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace sluice::engine {
namespace {

const TenantId kFlood("flood"), kQuiet("quiet");

struct Prompt {
  TenantId tenant;
  TenantTurns::Turn turn;
};

// Takes out the prompt whose turn is next, and computes it.
TenantId Next(TenantTurns& turns, std::vector<Prompt>* waiting) {
  const auto next =
      std::min_element(waiting->begin(), waiting->end(),
                       [](const Prompt& a, const Prompt& b) { return a.turn.end < b.turn.end; });
  const TenantId tenant = next->tenant;
  turns.Reach(next->turn);
  waiting->erase(next);
  return tenant;
}

TEST(TenantTurns, OneTenantKeepsItsOrder) {
  TenantTurns turns;
  double last = 0;
  for (uint64_t tokens : {2000u, 1u, 500u, 0u, 8000u}) {
    const double end = turns.Enter(kFlood, 1, tokens).end;
    EXPECT_GT(end, last);
    last = end;
  }
}

TEST(TenantTurns, AShortPromptGoesBeforeWhatAnotherTenantHasWaitingAndBeforeTheOneBegun) {
  TenantTurns turns;
  std::vector<TenantTurns::Turn> flood;
  for (int i = 0; i < 50; ++i) flood.push_back(turns.Enter(kFlood, 1, 2000));
  for (size_t i = 0; i < 3; ++i) turns.Reach(flood[i]);  // the third is being computed
  const TenantTurns::Turn quiet = turns.Enter(kQuiet, 1, 300);
  EXPECT_LT(quiet.end, flood[2].end);
}

TEST(TenantTurns, WhoAlwaysHasPromptsWaitingGetsItsWeightsPart) {
  TenantTurns turns;
  std::map<std::string, double> weights = {{"a", 1}, {"b", 2}, {"c", 5}};
  std::map<std::string, uint64_t> lengths = {{"a", 100}, {"b", 700}, {"c", 300}};
  std::map<std::string, uint64_t> computed;
  std::vector<Prompt> waiting;
  const auto enter = [&](const TenantId& tenant) {
    const std::string& name = tenant.value();
    waiting.push_back({tenant, turns.Enter(tenant, weights[name], lengths[name])});
  };
  for (const auto& [name, weight] : weights) {
    for (int i = 0; i < 20; ++i) enter(TenantId(name));
  }
  uint64_t total = 0;
  while (total < 1'000'000) {
    const TenantId tenant = Next(turns, &waiting);
    computed[tenant.value()] += lengths[tenant.value()];
    total += lengths[tenant.value()];
    enter(tenant);
  }
  for (const auto& [name, weight] : weights)
    EXPECT_NEAR(static_cast<double>(computed[name]) / static_cast<double>(total), weight / 8, 0.01);
}

TEST(TenantTurns, IdleTimeIsNotSavedUpAndWhatWasNotComputedIsNotHeldAgainstOne) {
  TenantTurns turns;
  for (int i = 0; i < 10; ++i) turns.Reach(turns.Enter(kFlood, 1, 1000));
  EXPECT_GE(turns.Enter(kQuiet, 1, 100).start, 9000);
  // Cancelled before it began: the next one comes as if it had not been.
  const TenantTurns::Turn cancelled = turns.Enter(kQuiet, 2, 8000);
  turns.Leave(kQuiet, 2, cancelled, 0);
  EXPECT_EQ(turns.Enter(kQuiet, 2, 100).start, cancelled.start);
}

}  // namespace
}  // namespace sluice::engine
