#include "base/thread_loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

namespace sluice {
namespace {

TEST(ThreadLoop, RunsPostedTasksInOrderAndTheRestBeforeItStops) {
  SystemClock clock;
  auto loop = ThreadLoop::Start("test", clock, 128);
  ASSERT_TRUE(loop.ok());
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE((*loop)->Post([&ran, i] { ran.push_back(i); }));
  (*loop)->Stop();
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
  EXPECT_FALSE((*loop)->Post([] {}));
}

TEST(ThreadLoop, FiresTimersAndDescriptors) {
  SystemClock clock;
  auto loop = ThreadLoop::Start("test", clock, 8);
  ASSERT_TRUE(loop.ok());
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  std::promise<char> got;
  std::promise<void> fired;
  (*loop)->Post([&] {
    ASSERT_TRUE((*loop)
                    ->WatchReadable(fds[0],
                                    [&] {
                                      char byte = 0;
                                      ASSERT_EQ(read(fds[0], &byte, 1), 1);
                                      got.set_value(byte);
                                    })
                    .ok());
    (*loop)->RunAt(clock.Now() + absl::Milliseconds(1), [&] { fired.set_value(); });
  });
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  EXPECT_EQ(got.get_future().get(), 'x');
  fired.get_future().get();
  (*loop)->Stop();
  close(fds[0]);
  close(fds[1]);
}

TEST(ThreadLoop, ATaskThatPostsItselfLetsTimersRun) {
  SystemClock clock;
  auto loop = ThreadLoop::Start("test", clock, 8);
  ASSERT_TRUE(loop.ok());
  std::atomic<bool> stop{false};
  std::function<void()> again = [&] {
    if (!stop.load()) (*loop)->Post(again);
  };
  (*loop)->Post([&] {
    (*loop)->RunAt(clock.Now() + absl::Milliseconds(1), [&] { stop.store(true); });
    again();
  });
  while (!stop.load()) std::this_thread::yield();
  (*loop)->Stop();
}

}  // namespace
}  // namespace sluice
