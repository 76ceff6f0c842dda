#include "kernels/page_tag/page_tag.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace sluice::kernels {
namespace {

class PageTagTest : public ::testing::Test {
 protected:
  // 200 pages of 128 bytes; generations far apart so that a narrow compare would miss the high
  // half.
  PageTagTest() : memory_(200 * 16) {
    for (size_t i = 0; i < 200; ++i) {
      memory_[i * 16] = (uint64_t{i} << 33) + 1;
      expected_.push_back(memory_[i * 16]);
      pages_.push_back(reinterpret_cast<const std::byte*>(&memory_[i * 16]));
    }
  }

  int64_t First(int64_t count) { return FirstTagMismatch(pages_.data(), expected_.data(), count); }

  std::vector<uint64_t> memory_;
  std::vector<uint64_t> expected_;
  std::vector<const std::byte*> pages_;
};

TEST_F(PageTagTest, AgreesWhenNothingChanged) {
  for (int64_t count : {0, 1, 31, 32, 33, 64, 65, 200}) {
    EXPECT_EQ(First(count), -1);
    std::vector<uint64_t> bits(4, ~uint64_t{0});
    EXPECT_EQ(FindTagMismatches(pages_.data(), expected_.data(), count, bits.data()), 0);
    for (int64_t word = 0; word < 4; ++word) {
      EXPECT_EQ(bits[static_cast<size_t>(word)], word * 64 < count ? 0 : ~uint64_t{0});
    }
  }
}

TEST_F(PageTagTest, FindsASingleStalePageAnywhere) {
  for (size_t stale = 0; stale < 200; ++stale) {
    const uint64_t good = memory_[stale * 16];
    memory_[stale * 16] = good ^ (uint64_t{1} << (stale % 64));
    EXPECT_EQ(First(200), static_cast<int64_t>(stale));
    EXPECT_EQ(First(static_cast<int64_t>(stale)), -1);
    std::vector<uint64_t> bits(4);
    EXPECT_EQ(FindTagMismatches(pages_.data(), expected_.data(), 200, bits.data()), 1);
    for (size_t word = 0; word < 4; ++word) {
      EXPECT_EQ(bits[word], word == stale / 64 ? uint64_t{1} << (stale % 64) : 0);
    }
    memory_[stale * 16] = good;
  }
}

TEST_F(PageTagTest, LooksAtTheGenerationOnly) {
  memory_[5 * 16 + 1] = 99;  // the owner
  EXPECT_EQ(First(200), -1);
  memory_[7 * 16] = 0;
  memory_[199 * 16] = 0;
  std::vector<uint64_t> bits(4);
  EXPECT_EQ(FindTagMismatches(pages_.data(), expected_.data(), 200, bits.data()), 2);
  EXPECT_EQ(bits[0], uint64_t{1} << 7);
  EXPECT_EQ(bits[3], uint64_t{1} << 7);
  EXPECT_EQ(First(200), 7);
}

}  // namespace
}  // namespace sluice::kernels
