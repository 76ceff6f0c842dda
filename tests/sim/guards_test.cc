// A test of the simulation: each rule that is switched off in the real code must show as a wrong
// token, and with all rules on the same worlds must be clean. Digests are off, unless they are the
// rule: they would hide the rest.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "base/log.h"
#include "tests/sim/sim_cluster.h"

namespace sluice::sim {
namespace {

#ifdef SLUICE_FAULTS_ENABLED
class EachGuard : public ::testing::TestWithParam<handoff::Guard> {};

constexpr uint64_t kSeeds = 200;

TEST_P(EachGuard, IsMissed) {
  SimOptions options;
  options.guards.SwitchOff(GetParam());
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimResult result = RunScenario(MakeGuardScenario(GetParam(), seed), options);
    if (!absl::StrContains(result.violation, "got token")) continue;
    fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed),
            result.violation.c_str());
    return;
  }
  FAIL() << "no wrong token in " << kSeeds << " seeds";
}

TEST_P(EachGuard, SufficesWithTheOthers) {
  SimCounts all;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const SimResult result = RunScenario(MakeGuardScenario(GetParam(), seed));
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    all.Add(result.counts);
  }
  EXPECT_GT(all.ok, all.requests / 4);
  fprintf(stderr, "%s\n", all.ToString().c_str());
}

INSTANTIATE_TEST_SUITE_P(All, EachGuard, ::testing::ValuesIn(handoff::kAllGuards));
#endif

}  // namespace
}  // namespace sluice::sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sluice::InitLogging("sim", sluice::LogLevel::kError, false);
  return RUN_ALL_TESTS();
}
