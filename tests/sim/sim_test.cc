// Seeds of whole clusters: nothing that must never happen may happen in any of them.
//   sim_test                        500 seeds and those of corpus/seeds.txt
//   sim_test [--protocol] --seed=N  that one, telling what strikes it, or every step
//   sim_test --seeds=N --first=M    N seeds from M on
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/sim/sim_cluster.h"

namespace sluice::sim {
namespace {

struct Flags {
  uint64_t first = 1;
  uint64_t seeds = 500;
  bool protocol = false;
} flags;  // NOLINT: set once in main

std::string Replay(uint64_t seed) { return "replay: sim_test --seed=" + std::to_string(seed); }

TEST(Sim, SeedsHoldTheInvariants) {
  SimCounts all;
  int failures = 0;
  for (uint64_t seed = flags.first; seed < flags.first + flags.seeds; ++seed) {
    const SimResult result = RunScenario(MakeScenario(seed));
    EXPECT_EQ(result.violation, "") << Replay(seed);
    if (!result.violation.empty() && ++failures >= 10) return;
    all.Add(result.counts);
  }
  fprintf(stderr, "%s\n", all.ToString().c_str());
  if (flags.seeds < 100) return;
  // Passing means something only if all this was met.
  EXPECT_GT(all.ok, all.requests / 2);
  EXPECT_GT(all.choices, all.requests + flags.seeds);
  EXPECT_GT(all.resumes, flags.seeds / 20);
  EXPECT_GT(all.flows.split, all.requests / 4);
  EXPECT_GT(all.flows.cached, flags.seeds / 4);
  EXPECT_GT(all.flows.retries, flags.seeds / 4);
  EXPECT_GT(all.flows.migrations, flags.seeds / 4);
  EXPECT_GT(all.flows.recomputed, flags.seeds / 4);
  EXPECT_GT(all.router_crashes, flags.seeds / 8);
  EXPECT_GT(all.lost_pages, flags.seeds / 20);
  EXPECT_GT(all.digest_failures, flags.seeds / 20);
  EXPECT_GT(all.crashes, flags.seeds / 4);
  EXPECT_GT(all.transfers, flags.seeds);
  EXPECT_GT(all.transfers_failed, flags.seeds / 4);
  EXPECT_GT(all.lease_expiries, flags.seeds / 4);
  EXPECT_GT(all.stale_messages, flags.seeds / 4);
  EXPECT_GT(all.duplicate_messages, flags.seeds / 4);
  EXPECT_GT(all.quarantines, flags.seeds / 4);
  EXPECT_GT(all.evictions, flags.seeds / 4);
#ifdef SLUICE_FAULTS_ENABLED
  for (const auto& [point, reached] : all.points) EXPECT_GT(reached, flags.seeds / 4) << point;
#endif
}

TEST(Sim, SeedsThatFailedOnceStayGood) {
  std::ifstream corpus(SLUICE_TEST_DATA "/sim/corpus/seeds.txt");
  ASSERT_TRUE(corpus.good());
  for (std::string line; std::getline(corpus, line);) {
    if (line.empty() || line[0] == '#') continue;
    const uint64_t seed = std::strtoull(line.c_str(), nullptr, 10);
    EXPECT_EQ(RunScenario(MakeScenario(seed)).violation, "") << Replay(seed) << "   " << line;
  }
}

TEST(Sim, ASeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const SimResult one = RunScenario(MakeScenario(seed));
    const SimResult two = RunScenario(MakeScenario(seed));
    EXPECT_EQ(one.hash, two.hash) << Replay(seed);
    EXPECT_EQ(one.counts.events, two.counts.events) << Replay(seed);
  }
}

int ReplaySeed(uint64_t seed) {
  InitLogging("sim", LogLevel::kInfo, false);
  SimOptions options;
  options.protocol = flags.protocol;
  options.told = [](absl::Duration at, const std::string& what) {
    fprintf(stderr, "%10.6f %s\n", absl::ToDoubleSeconds(at), what.c_str());
  };
  const SimResult result = RunScenario(MakeScenario(seed), options);
  fprintf(stderr, "%s\nhash %016llx\n%s\n", result.counts.ToString().c_str(),
          static_cast<unsigned long long>(result.hash),
          result.violation.empty() ? "no violation" : result.violation.c_str());
  return result.violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sluice::InitLogging("sim", sluice::LogLevel::kError, false);
  const auto number = [](const char* argument, const char* flag, uint64_t* value) {
    if (std::strncmp(argument, flag, std::strlen(flag)) != 0) return false;
    *value = std::strtoull(argument + std::strlen(flag), nullptr, 10);
    return true;
  };
  for (int i = 1; i < argc; ++i) {
    uint64_t seed = 0;
    if (std::strcmp(argv[i], "--protocol") == 0) {
      sluice::sim::flags.protocol = true;
      continue;
    }
    if (number(argv[i], "--seed=", &seed)) return sluice::sim::ReplaySeed(seed);
    if (number(argv[i], "--seeds=", &sluice::sim::flags.seeds)) continue;
    if (number(argv[i], "--first=", &sluice::sim::flags.first)) continue;
    fprintf(stderr, "unknown argument %s; flags: --protocol, --seed=N, --seeds=N, --first=N\n",
            argv[i]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
