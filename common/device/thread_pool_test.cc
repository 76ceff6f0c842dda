#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

namespace sluice::device {
namespace {

std::unique_ptr<ThreadPool> MakePool(int workers, int spin_pauses = 1000) {
  ThreadPoolOptions options;
  options.workers = workers;
  options.scratch_bytes = size_t{1} << 16;
  options.spin_pauses = spin_pauses;
  auto pool = ThreadPool::Create(options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(ThreadPoolTest, RunsEveryIndexExactlyOnce) {
  for (int workers : {1, 2, 3, 8}) {
    auto pool = MakePool(workers);
    for (int64_t n : {0, 1, 2, 3, 7, 8, 63, 64, 1000}) {
      for (int64_t min_chunk : {1, 5, 2000}) {
        std::vector<int> runs(static_cast<size_t>(n), 0);
        pool->ParallelFor(
            n,
            [&](int64_t begin, int64_t end, int worker) {
              ASSERT_LT(begin, end);
              ASSERT_GE(worker, 0);
              ASSERT_LT(worker, workers);
              for (int64_t i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
            },
            min_chunk);
        for (int count : runs) ASSERT_EQ(count, 1) << workers << " " << n << " " << min_chunk;
      }
    }
  }
}

// Plain (non-atomic) data written in one call and read in the next: ThreadSanitizer checks the
// ordering.
TEST(ThreadPoolTest, WritesOfOneCallAreVisibleToTheNext) {
  for (int spin_pauses : {0, 1000}) {
    auto pool = MakePool(4, spin_pauses);
    std::vector<int64_t> values(257, 0);
    for (int64_t round = 0; round < 300; ++round) {
      pool->ParallelFor(257, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
      });
      int64_t sum = 0;
      for (int64_t value : values) sum += value;
      ASSERT_EQ(sum, (round + 1) * 257);
    }
  }
}

// Parts carry the number of their job in 16 bits.
TEST(ThreadPoolTest, JobNumbersMayWrap) {
  auto pool = MakePool(2);
  std::vector<int64_t> runs(2, 0);
  constexpr int64_t kJobs = 70000;
  for (int64_t job = 0; job < kJobs; ++job) {
    pool->ParallelFor(2, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
    });
  }
  EXPECT_EQ(runs, (std::vector<int64_t>{kJobs, kJobs}));
}

// What is named to be fetched ahead is not touched otherwise: it may be gone.
TEST(ThreadPoolTest, MemoryAheadMayBeGone) {
  auto pool = MakePool(3);
  std::atomic<int64_t> ran{0};
  for (size_t bytes : {size_t{1}, size_t{64}, size_t{100}, size_t{3} << 20}) {
    const absl::Span<const uint8_t> gone(reinterpret_cast<const uint8_t*>(4096), bytes);
    pool->ParallelFor(
        100, [&](int64_t begin, int64_t end, int) { ran.fetch_add(end - begin); }, 1, gone);
  }
  EXPECT_EQ(ran.load(), 400);
}

TEST(ThreadPoolTest, IdleWorkersStealFromABusyOne) {
  auto pool = MakePool(2);
  // Index 0, first of worker 0's part, ends only when all others are done: worker 1 must take the
  // rest of that part.
  std::atomic<int> done{0};
  pool->ParallelFor(64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      if (i == 0) {
        // Indices of this very chunk cannot be stolen any more.
        while (done.load() < 64 - (end - begin)) std::this_thread::yield();
      } else {
        done.fetch_add(1);
      }
    }
  });
  EXPECT_EQ(done.load(), 63);
}

TEST(ThreadPoolTest, SmallWorkStaysOnTheCaller) {
  auto pool = MakePool(4);
  const std::thread::id self = std::this_thread::get_id();
  pool->ParallelFor(
      10,
      [&](int64_t, int64_t, int worker) {
        EXPECT_EQ(worker, 0);
        EXPECT_EQ(std::this_thread::get_id(), self);
      },
      10);
}

TEST(ThreadPoolTest, EachWorkerHasItsOwnScratch) {
  auto pool = MakePool(3);
  std::set<std::byte*> starts;
  for (int worker = 0; worker < 3; ++worker) {
    const absl::Span<std::byte> scratch = pool->scratch(worker);
    ASSERT_EQ(scratch.size(), size_t{1} << 16);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.data()) % HugePageArena::kAlignment, 0u);
    std::memset(scratch.data(), worker, scratch.size());
    starts.insert(scratch.data());
  }
  EXPECT_EQ(starts.size(), 3u);
}

TEST(ThreadPoolTest, RefusesBadOptions) {
  ThreadPoolOptions options;
  options.workers = 0;
  EXPECT_EQ(ThreadPool::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.workers = ThreadPool::kMaxWorkers + 1;
  EXPECT_EQ(ThreadPool::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ThreadPoolDeathTest, NestedCallIsOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto pool = MakePool(1);
  EXPECT_DEATH(
      pool->ParallelFor(
          1, [&](int64_t, int64_t, int) { pool->ParallelFor(1, [](int64_t, int64_t, int) {}); }),
      "nested");
}

}  // namespace
}  // namespace sluice::device
