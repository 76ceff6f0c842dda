// Every order of everything that can happen in a small world, run by the real code: no request may
// attend bytes that are not its own. Without any one of the rules some order shows that it does:
// those of page_move_model, the exhaustive model of the protocol, found again in the code.
//   sim_enumeration_test            in seconds
//   sim_enumeration_test --long     the wider bounds, in minutes
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "tests/sim/small_world.h"

namespace sluice::sim {
namespace {

uint64_t actions_max = 250'000;  // NOLINT: set once in main

struct Bounds {
  const char* name;
  SmallWorldLimits limits;
  uint32_t deviations_min;  // that the bound on actions must leave room for
};

// Wider and wider, as far as the bound on actions goes.
TEST(Enumeration, NoOrderHarms) {
  const Bounds all[] = {
      {"4 pages, 3 requests, 2 leases of time, a message lost, one repeated, a request given up",
       {.holder_pages = 2, .taker_pages = 2, .requests = 3},
       1},
      {"3 pages, 2 requests, the same", {.holder_pages = 1, .taker_pages = 2, .requests = 2}, 2},
      {"2 pages, 2 requests, 2 leases of time",
       {.holder_pages = 1, .taker_pages = 1, .requests = 2, .losses = 0, .duplicates = 0},
       3},
  };
  for (const Bounds& bounds : all) {
    SmallWorldLimits limits = bounds.limits;
    uint32_t complete = 0;
    for (limits.deviations = 0;; ++limits.deviations) {
      const Enumeration found = EnumerateAll(limits, {}, actions_max);
      EXPECT_EQ(found.violation, "");
      if (!found.complete) break;
      complete = limits.deviations;
      EXPECT_GT(found.attended, 0u) << "nothing much can happen";
      fprintf(stderr, "%s, %u deviations: %llu states, %llu actions\n", bounds.name,
              limits.deviations, static_cast<unsigned long long>(found.states),
              static_cast<unsigned long long>(found.actions));
    }
    EXPECT_GE(complete, bounds.deviations_min);
  }
}

#ifdef SLUICE_FAULTS_ENABLED
class EachGuard : public testing::TestWithParam<handoff::Guard> {};

SmallWorldLimits LimitsFor(handoff::Guard guard) {
  using handoff::Guard;
  SmallWorldLimits limits{.holder_pages = 1,
                          .taker_pages = 2,
                          .requests = 2,
                          .losses = 0,
                          .duplicates = 0,
                          .gives_up = 0};
  if (guard == Guard::kRenewalNeedsAck) limits.losses = 1;
  if (guard == Guard::kHoldWhileFetching || guard == Guard::kMatchLease) limits.gives_up = 1;
  if (guard == Guard::kHoldWhileFetching) {
    limits.holder_pages = 2;
    limits.taker_pages = 1;
  }
  if (guard == Guard::kMatchLease) {
    limits.duplicates = 1;
    limits.requests = 3;
  }
  return limits;
}

TEST_P(EachGuard, IsMissedInSomeOrder) {
  handoff::Guards guards;
  guards.SwitchOff(GetParam());
  SmallWorldLimits limits = LimitsFor(GetParam());
  Enumeration found;
  for (limits.deviations = 0; limits.deviations < 12 && found.violation.empty();
       ++limits.deviations)
    found = EnumerateAll(limits, guards, 10 * actions_max);
  EXPECT_NE(found.violation, "");
  fprintf(stderr, "%s, with %u deviations, after %llu actions:", found.violation.c_str(),
          limits.deviations - 1, static_cast<unsigned long long>(found.actions));
  for (const Action& action : found.path) fprintf(stderr, " %s;", Describe(action).c_str());
  fprintf(stderr, "\n");
}

// no_resurrection needs a holder that forgets; sim_guards_test and guards_test have such worlds.
INSTANTIATE_TEST_SUITE_P(
    Model, EachGuard,
    testing::Values(handoff::Guard::kCheckAfterFetch, handoff::Guard::kCountFromSending,
                    handoff::Guard::kRenewalNeedsAck, handoff::Guard::kHoldWhileFetching,
                    handoff::Guard::kPinUntilReleased, handoff::Guard::kMatchLease,
                    handoff::Guard::kCommitCounts));
#endif

}  // namespace
}  // namespace sluice::sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sluice::InitLogging("sim", sluice::LogLevel::kError, false);
  if (argc > 1 && std::strcmp(argv[1], "--long") == 0) sluice::sim::actions_max = 20'000'000;
  return RUN_ALL_TESTS();
}
