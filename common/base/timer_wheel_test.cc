#include "base/timer_wheel.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(TimerWheel, FiresInOrderOfTimeThenOfMaking) {
  TimerWheel wheel;
  std::vector<int> fired;
  wheel.Add(kStart + absl::Seconds(2), [&] { fired.push_back(3); });
  wheel.Add(kStart + absl::Seconds(1), [&] { fired.push_back(1); });
  wheel.Add(kStart + absl::Seconds(1), [&] { fired.push_back(2); });
  EXPECT_EQ(wheel.NextDue(), kStart + absl::Seconds(1));
  wheel.Advance(kStart + absl::Seconds(1));
  EXPECT_EQ(fired, (std::vector<int>{1, 2}));
  wheel.Advance(kStart + absl::Seconds(5));
  EXPECT_EQ(fired, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(wheel.NextDue(), absl::InfiniteFuture());
}

TEST(TimerWheel, CancelledTimersDoNotFireAlsoFromACallback) {
  TimerWheel wheel;
  int fired = 0;
  const TimerId second = wheel.Add(kStart + absl::Seconds(2), [&] { ++fired; });
  wheel.Add(kStart + absl::Seconds(1), [&] { EXPECT_TRUE(wheel.Cancel(second)); });
  wheel.Advance(kStart + absl::Seconds(3));
  EXPECT_EQ(fired, 0);
  EXPECT_FALSE(wheel.Cancel(second));
  EXPECT_EQ(wheel.size(), 0u);
}

TEST(TimerWheel, ACallbackThatRearmsItselfDoesNotHangTheLoop) {
  TimerWheel wheel;
  int fired = 0;
  std::function<void()> rearm = [&] {
    ++fired;
    wheel.Add(kStart, rearm);
  };
  wheel.Add(kStart, rearm);
  wheel.Advance(kStart);
  EXPECT_EQ(fired, 1);
  wheel.Advance(kStart);
  EXPECT_EQ(fired, 2);
}

}  // namespace
}  // namespace sluice
