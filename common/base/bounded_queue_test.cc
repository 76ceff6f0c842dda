#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace sluice {
namespace {

TEST(BoundedQueue, RefusesWhenFullAndLeavesTheValue) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueue, CloseRefusesPushesAndDrainsTheRest) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.TryPush(7));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(8));
  EXPECT_EQ(queue.PopFor(absl::Seconds(1)), 7);
  EXPECT_EQ(queue.PopFor(absl::InfiniteDuration()), std::nullopt);
}

TEST(BoundedQueue, EveryItemOfManyProducersArrivesOnce) {
  constexpr int kProducers = 3;
  constexpr int kEach = 2000;
  std::atomic<int> wakeups{0};
  BoundedQueue<int> queue(16, [&wakeups] { ++wakeups; });
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!queue.TryPush(p * kEach + i)) std::this_thread::yield();
      }
    });
  }
  std::vector<int> seen(kProducers * kEach, 0);
  for (int taken = 0; taken < kProducers * kEach;) {
    if (auto item = queue.PopFor(absl::Seconds(10))) {
      ++seen[static_cast<size_t>(*item)];
      ++taken;
    }
  }
  for (auto& producer : producers) producer.join();
  for (int count : seen) EXPECT_EQ(count, 1);
  EXPECT_EQ(wakeups.load(), kProducers * kEach);
}

}  // namespace
}  // namespace sluice
