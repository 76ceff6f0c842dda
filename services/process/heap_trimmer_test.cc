#include "services/process/heap_trimmer.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "config/config.h"
#include "gtest/gtest.h"
#include "services/process/service_process.h"

namespace sluice::services {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t ResidentBytes() {
  size_t total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Blocks of a size that malloc does not map by itself.
std::vector<std::unique_ptr<std::vector<char>>> Fill(size_t bytes) {
  constexpr size_t kBlockBytes = 32 << 10;
  std::vector<std::unique_ptr<std::vector<char>>> blocks;
  for (size_t i = 0; i < bytes / kBlockBytes; ++i)
    blocks.push_back(std::make_unique<std::vector<char>>(kBlockBytes, 'x'));
  return blocks;
}

// First, because it needs a heap that nobody has used.
TEST(HeapTrimmer, TheEndOfAThreadsHeapGoesBackWhateverLargeBlockWasFreedBefore) {
  void* volatile large = std::malloc(30 * kMiB);
  std::free(large);
  HeapTrimmer trimmer(4 * kMiB);
  const size_t before = ResidentBytes();
  size_t full = 0;
  std::thread([&full] {
    const auto blocks = Fill(32 * kMiB);
    full = ResidentBytes();
  }).join();
  EXPECT_GT(full, before + 24 * kMiB) << "the test shows nothing";
  trimmer.Run();
  EXPECT_LT(ResidentBytes(), before + 4 * kMiB);
}

TEST(HeapTrimmer, WhatLiesBetweenLivingBlocksGoesBackOnceAndAgainAfterTheNextCrowd) {
  HeapTrimmer trimmer(4 * kMiB);
  trimmer.Run();
  EXPECT_FALSE(trimmer.Run()) << "nothing was freed in between";
  for (int crowd = 0; crowd < 2; ++crowd) {
    const size_t before = ResidentBytes();
    // In a heap of another thread, as services have it.
    std::unique_ptr<std::vector<char>> last;
    std::thread([&last] {
      auto blocks = Fill(64 * kMiB);
      last = std::move(blocks.back());  // keeps the end of the heap
    }).join();
    EXPECT_GT(ResidentBytes(), before + 32 * kMiB) << "the test shows nothing";
    EXPECT_TRUE(trimmer.Run());
    EXPECT_LT(ResidentBytes(), before + 4 * kMiB);
    EXPECT_FALSE(trimmer.Run());
  }
}

TEST(HeapTrimmer, AServiceRunsIt) {
  const size_t before = ResidentBytes();
  std::unique_ptr<std::vector<char>> last;
  std::thread([&last] {
    auto blocks = Fill(64 * kMiB);
    last = std::move(blocks.back());
  }).join();
  ASSERT_GT(ResidentBytes(), before + 48 * kMiB) << "the test shows nothing";
  ServiceProcess process({"cache-manager", config::LoadCacheManagerConfig({})->service(), ""});
  ASSERT_TRUE(process.Serve({}).ok());
  const absl::Time deadline = process.clock().Now() + absl::Seconds(30);
  while (ResidentBytes() > before + 32 * kMiB && process.clock().Now() < deadline)
    std::this_thread::yield();
  EXPECT_LE(ResidentBytes(), before + 32 * kMiB);
}

TEST(HeapTrimmer, LittleIsKept) {
  HeapTrimmer trimmer(4 * kMiB);
  trimmer.Run();
  Fill(2 * kMiB);
  EXPECT_FALSE(trimmer.Run());
}

}  // namespace
}  // namespace sluice::services
