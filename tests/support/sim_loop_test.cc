#include "tests/support/sim_loop.h"

#include <gtest/gtest.h>

namespace sluice::testing {
namespace {

TEST(SimWorld, TimeMovesOnlyWhenNothingIsLeftToRunNow) {
  SimWorld world;
  SimLoop& a = world.AddLoop("a");
  SimLoop& b = world.AddLoop("b");
  const absl::Time start = world.Now();
  std::vector<std::string> ran;
  a.RunAt(start + absl::Seconds(2), [&] { ran.push_back("a2"); });
  b.RunAt(start + absl::Seconds(1), [&] {
    ran.push_back("b1");
    a.Post([&] { ran.push_back("posted"); });
  });
  EXPECT_EQ(world.RunUntil(start + absl::Seconds(5)), 3u);
  EXPECT_EQ(ran, (std::vector<std::string>{"b1", "posted", "a2"}));
  EXPECT_EQ(world.Now(), start + absl::Seconds(5));
}

TEST(SimWorld, APausedLoopIsLateAndACrashedOneIsGone) {
  SimWorld world;
  SimLoop& a = world.AddLoop("a", 2);
  absl::Time ran_at = absl::InfinitePast();
  const absl::Time start = world.Now();
  a.RunAt(start + absl::Seconds(1), [&] { ran_at = world.Now(); });
  a.Pause();
  world.RunUntil(start + absl::Seconds(3));
  EXPECT_EQ(ran_at, absl::InfinitePast());
  a.Resume();
  world.RunUntil(start + absl::Seconds(4));
  EXPECT_EQ(ran_at, start + absl::Seconds(3));
  EXPECT_TRUE(a.Post([] {}));
  EXPECT_TRUE(a.Post([] {}));
  EXPECT_FALSE(a.Post([] {}));
  a.Crash();
  EXPECT_FALSE(a.Post([] {}));
  EXPECT_FALSE(world.RunOne());
}

uint64_t RunWithSeed(uint64_t seed) {
  SimWorld world(seed);
  SimLoop& a = world.AddLoop("a");
  SimLoop& b = world.AddLoop("b");
  int left = 20;
  std::function<void()> ping = [&] {
    if (--left > 0) b.Post(ping);
  };
  for (int i = 0; i < 5; ++i) {
    a.Post(ping);
    b.Post([] {});
  }
  while (world.RunOne()) {
  }
  return world.log_hash();
}

TEST(SimWorld, TheSameSeedGivesTheSameRun) {
  EXPECT_EQ(RunWithSeed(7), RunWithSeed(7));
  EXPECT_NE(RunWithSeed(7), RunWithSeed(8));
}

TEST(SimWorld, SourcesTakeTheirTurn) {
  SimWorld world;
  SimLoop& a = world.AddLoop("a");
  absl::Time due = world.Now() + absl::Seconds(1);
  int delivered = 0;
  world.AddSource([&] { return due; },
                  [&](absl::Time) {
                    due = absl::InfiniteFuture();
                    a.Post([&] { ++delivered; });
                  });
  EXPECT_TRUE(world.RunUntilTrue([&] { return delivered == 1; }));
  EXPECT_FALSE(world.RunUntilTrue([&] { return delivered == 2; }));
}

}  // namespace
}  // namespace sluice::testing
