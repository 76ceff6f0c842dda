#include "services/cli/load/dispatcher.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/clock.h"

namespace sluice::cli {
namespace {

DispatchOptions Options(std::vector<absl::Duration> arrivals, uint32_t max_concurrency) {
  return {std::move(arrivals), max_concurrency, absl::ZeroDuration()};
}

TEST(PoissonArrivals, HaveTheRateAndTheSpreadOfAPoissonProcess) {
  const size_t count = 20000;
  const auto arrivals = PoissonArrivals(50, count, 3);
  EXPECT_EQ(arrivals, PoissonArrivals(50, count, 3));
  EXPECT_NE(arrivals, PoissonArrivals(50, count, 4));
  double squares = 0;
  absl::Duration last;
  for (absl::Duration arrival : arrivals) {
    ASSERT_GE(arrival, last);
    const double gap = absl::ToDoubleSeconds(arrival - last);
    squares += gap * gap;
    last = arrival;
  }
  const double mean = absl::ToDoubleSeconds(last) / count;
  EXPECT_NEAR(mean, 0.02, 0.02 * 0.03);
  // The variance of an exponential gap is the square of its mean.
  EXPECT_NEAR(squares / count - mean * mean, mean * mean, mean * mean * 0.1);
}

TEST(PoissonArrivals, InfiniteRateIsAtOnce) {
  for (absl::Duration arrival : PoissonArrivals(std::numeric_limits<double>::infinity(), 5, 1)) {
    EXPECT_EQ(arrival, absl::ZeroDuration());
  }
}

TEST(Dispatcher, OpenLoopSendsWhenDueWhateverIsInFlight) {
  FakeClock clock;
  Dispatcher dispatcher(Options({absl::Seconds(1), absl::Seconds(3)}, 10), {1, 1}, clock.Now());
  EXPECT_FALSE(dispatcher.Next(clock.Now()).has_value());
  EXPECT_EQ(dispatcher.next_due(), clock.Now() + absl::Seconds(1));
  clock.Advance(absl::Seconds(1));
  const auto first = dispatcher.Next(clock.Now());
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->session, 0u);
  EXPECT_EQ(first->due, clock.Now());
  EXPECT_FALSE(dispatcher.Next(clock.Now()).has_value());
  clock.Advance(absl::Seconds(5));
  const auto second = dispatcher.Next(clock.Now());
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->due, clock.Now() - absl::Seconds(3));
  EXPECT_EQ(dispatcher.peak_in_flight(), 2u);
  dispatcher.OnDone(1, true, clock.Now());
  EXPECT_FALSE(dispatcher.finished());
  dispatcher.OnDone(0, false, clock.Now());
  EXPECT_TRUE(dispatcher.finished());
  EXPECT_EQ(dispatcher.not_sent(), 0u);
}

TEST(Dispatcher, ClosedLoopKeepsSoManyInFlight) {
  FakeClock clock;
  Dispatcher dispatcher(Options(std::vector<absl::Duration>(5), 2), {1, 1, 1, 1, 1}, clock.Now());
  EXPECT_EQ(dispatcher.Next(clock.Now())->session, 0u);
  EXPECT_EQ(dispatcher.Next(clock.Now())->session, 1u);
  EXPECT_FALSE(dispatcher.Next(clock.Now()).has_value());
  EXPECT_EQ(dispatcher.next_due(), absl::InfiniteFuture());
  dispatcher.OnDone(1, true, clock.Now());
  EXPECT_EQ(dispatcher.Next(clock.Now())->session, 2u);
  EXPECT_FALSE(dispatcher.Next(clock.Now()).has_value());
  EXPECT_EQ(dispatcher.peak_in_flight(), 2u);
}

TEST(Dispatcher, TurnsFollowTheEndOfTheOneBefore) {
  FakeClock clock;
  DispatchOptions options = Options({absl::ZeroDuration()}, 4);
  options.think_time = absl::Seconds(2);
  Dispatcher dispatcher(options, {3}, clock.Now());
  EXPECT_EQ(dispatcher.Next(clock.Now())->turn, 0u);
  EXPECT_EQ(dispatcher.next_due(), absl::InfiniteFuture());
  clock.Advance(absl::Seconds(1));
  dispatcher.OnDone(0, true, clock.Now());
  EXPECT_FALSE(dispatcher.finished());
  EXPECT_FALSE(dispatcher.Next(clock.Now()).has_value());
  EXPECT_EQ(dispatcher.next_due(), clock.Now() + absl::Seconds(2));
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(dispatcher.Next(clock.Now())->turn, 1u);
  // A failure ends the session: the third turn has no conversation to go on with.
  dispatcher.OnDone(0, false, clock.Now());
  EXPECT_TRUE(dispatcher.finished());
  EXPECT_EQ(dispatcher.not_sent(), 1u);
}

TEST(Dispatcher, StopGivesUpWhatWasNotSent) {
  FakeClock clock;
  Dispatcher dispatcher(Options(std::vector<absl::Duration>(3), 1), {2, 4, 1}, clock.Now());
  ASSERT_TRUE(dispatcher.Next(clock.Now()).has_value());
  dispatcher.Stop();
  EXPECT_FALSE(dispatcher.finished());
  EXPECT_FALSE(dispatcher.Next(clock.Now()).has_value());
  dispatcher.OnDone(0, true, clock.Now());
  EXPECT_TRUE(dispatcher.finished());
  EXPECT_EQ(dispatcher.not_sent(), 6u);
}

}  // namespace
}  // namespace sluice::cli
