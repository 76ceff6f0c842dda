#include "transport/buffer_pool.h"

#include <gtest/gtest.h>

#include <utility>

namespace sluice::transport {
namespace {

TEST(BufferPool, UsesLargeBuffersAgain) {
  BufferPool pool(1 << 20);
  PooledBuffer first = pool.Take(100000);
  EXPECT_EQ(first.size(), 100000u);
  uint8_t* const memory = first.data();
  first.Reset();
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(pool.kept_bytes(), 131072u);
  PooledBuffer second = pool.Take(131072);
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(pool.kept_bytes(), 0u);
  PooledBuffer third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  third = pool.Take(10);
  EXPECT_EQ(pool.kept_bytes(), 131072u) << "assigning gives the old one back";
}

TEST(BufferPool, KeepsNoMoreThanItMay) {
  BufferPool pool(200000);
  {
    PooledBuffer a = pool.Take(131072), b = pool.Take(131072), empty = pool.Take(0),
                 small = pool.Take(100);
    EXPECT_EQ(empty.data(), nullptr);
    a.data()[131071] = b.data()[0] = small.data()[99] = 1;
  }
  EXPECT_EQ(pool.kept_bytes(), 131072u);
}

}  // namespace
}  // namespace sluice::transport
