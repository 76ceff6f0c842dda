#include "services/process/loop_watch.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/support/sim_loop.h"

namespace sluice::services {
namespace {

using sluice::testing::SimLoop;
using sluice::testing::SimWorld;

class LoopWatchTest : public ::testing::Test {
 protected:
  SimWorld world_;
  LoopWatch watch_{world_.clock()};
};

TEST_F(LoopWatchTest, LoopsThatMoveAreAlive) {
  EXPECT_TRUE(watch_.Check().ok());
  watch_.Add("a", world_.AddLoop("a"));
  watch_.Add("b", world_.AddLoop("b"));
  for (int minute = 0; minute < 10; ++minute) {
    world_.RunFor(absl::Minutes(1));
    EXPECT_TRUE(watch_.Check().ok()) << watch_.Check();
  }
}

TEST_F(LoopWatchTest, AStuckLoopIsNamedUntilItMovesAgain) {
  SimLoop& stuck = world_.AddLoop("stuck");
  watch_.Add("fine", world_.AddLoop("fine"));
  watch_.Add("stuck", stuck);
  world_.RunFor(absl::Seconds(20));
  stuck.Pause();
  world_.RunFor(absl::Seconds(50));
  EXPECT_TRUE(watch_.Check().ok()) << watch_.Check();
  world_.RunFor(absl::Seconds(20));
  const absl::Status status = watch_.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "\"stuck\"")) << status;
  stuck.Resume();
  world_.RunFor(absl::Seconds(1));
  EXPECT_TRUE(watch_.Check().ok()) << watch_.Check();
}

TEST_F(LoopWatchTest, ALoopThatNeverRanIsNotAlive) {
  SimLoop& dead = world_.AddLoop("dead");
  dead.Crash();
  watch_.Add("dead", dead);
  world_.RunFor(absl::Seconds(61));
  EXPECT_FALSE(watch_.Check().ok());
}

TEST(LoopWatch, ALoopMayOutliveItsWatch) {
  SimWorld world;
  {
    LoopWatch watch(world.clock());
    watch.Add("a", world.AddLoop("a"));
  }
  world.RunFor(absl::Minutes(1));
}

}  // namespace
}  // namespace sluice::services
