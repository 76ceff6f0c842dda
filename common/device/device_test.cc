#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "device/cpu.h"
#include "device/huge_page_arena.h"

namespace sluice::device {
namespace {

TEST(HugePageArenaTest, IsAlignedZeroedAndMovable) {
  auto created = HugePageArena::Create(3 << 20);
  ASSERT_TRUE(created.ok()) << created.status();
  HugePageArena arena = *std::move(created);
  ASSERT_EQ(arena.memory().size(), size_t{3} << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.memory().data()) % HugePageArena::kAlignment, 0u);
  EXPECT_EQ(arena.memory()[(3 << 20) - 1], std::byte{0});
  std::memset(arena.memory().data(), 7, arena.memory().size());
  HugePageArena moved = std::move(arena);
  EXPECT_EQ(moved.memory()[12345], std::byte{7});
  EXPECT_TRUE(arena.memory().empty());  // NOLINT(bugprone-use-after-move)
  moved = HugePageArena();
  EXPECT_TRUE(moved.memory().empty());
}

TEST(HugePageArenaTest, AllocatesUntilFull) {
  auto arena = HugePageArena::Create(1000);
  ASSERT_TRUE(arena.ok());
  auto first = arena->Allocate(1);
  auto second = arena->Allocate(100);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(second->data() - first->data(), 64);
  EXPECT_EQ(arena->Allocate(1000 - 192 + 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(arena->Allocate(1000 - 192).ok());
  EXPECT_EQ(arena->allocated_bytes(), 1000u);
  EXPECT_EQ(arena->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HugePageArenaTest, RefusesImpossibleSizes) {
  EXPECT_EQ(HugePageArena::Create(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HugePageArena::Create(SIZE_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HugePageArena::Create(size_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(CpuTest, ReadsQuotas) {
  EXPECT_EQ(CpusOfQuota("max 100000\n"), 0);
  EXPECT_EQ(CpusOfQuota("200000 100000"), 2);
  EXPECT_EQ(CpusOfQuota("150000 100000"), 2);
  EXPECT_EQ(CpusOfQuota("1000 100000"), 1);
  EXPECT_EQ(CpusOfQuota(""), 0);
  EXPECT_EQ(CpusOfQuota("-1 5"), 0);
  EXPECT_EQ(CpusOfQuota("5 0"), 0);
  EXPECT_EQ(CpusOfQuota("nonsense"), 0);
  EXPECT_GE(UsableCpus(), 1);
}

TEST(CpuTest, MeasuresBandwidthOverAnySize) {
  ThreadPoolOptions options;
  options.workers = 2;
  auto pool = ThreadPool::Create(options);
  ASSERT_TRUE(pool.ok());
  // Not a whole number of pieces: the last one is short.
  auto rate = MeasureReadBandwidth(**pool, SystemClock(), (5 << 20) + 12345, 2);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_GT(*rate, 0);
  EXPECT_EQ(MeasureReadBandwidth(**pool, SystemClock(), 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::device
