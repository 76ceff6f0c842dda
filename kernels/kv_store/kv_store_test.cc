#include "kernels/kv_store/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/fp/fp.h"
#include "kernels/kv_store/kv_test_pages.h"

namespace sluice::kernels {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kGqaFp8,
                                 KvFormat::kGqaFp8c, KvFormat::kGqaInt8c};

std::vector<float> RandomRows(size_t n, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(n);
  for (float& value : values) {
    // Magnitudes over many powers of two, so that e4m3 subnormals and both signs occur.
    const double magnitude = std::exp2(random.Unit() * 24 - 16);
    value = static_cast<float>(random.Below(2) == 0 ? magnitude : -magnitude);
  }
  return values;
}

std::vector<std::byte> PageBytes(const TestPages& pages, size_t page_bytes) {
  std::vector<std::byte> all;
  for (size_t i = 0; i < pages.count(); ++i) {
    all.insert(all.end(), pages.table()[i], pages.table()[i] + page_bytes);
  }
  return all;
}

TEST(KvStoreTest, EveryPathWritesTheSameBytes) {
  for (KvFormat format : kFormats) {
    for (int dim : {16, 32, 48, 64, 128}) {
      size_t page_bytes = 0;
      KvLayerView layer = TestLayer(format, 3, dim, 32, &page_bytes);
      const int tokens = 70;
      const auto width = static_cast<size_t>(3 * dim);
      const std::vector<float> centres = RandomRows(2 * width, 5);
      if (IsCentred(format)) {
        layer.sink_rows = 1;
        layer.k_centre = centres.data();
        layer.v_centre = centres.data() + width;
      }
      std::vector<float> k = RandomRows(width * tokens, 1);
      std::vector<float> v = RandomRows(width * tokens, 2);
      // Special rows: zeros of both signs, infinities, NaN, float32 subnormals, the largest finite
      // value.
      std::fill_n(k.begin(), width, 0.0f);
      std::fill_n(v.begin(), width, -0.0f);
      k[width + 3] = std::numeric_limits<float>::infinity();
      v[width + 5] = -std::numeric_limits<float>::infinity();
      k[2 * width + 1] = std::numeric_limits<float>::quiet_NaN();
      v[2 * width + 2] = -std::numeric_limits<float>::quiet_NaN();
      k[2 * width + 7] = BitsFloat(0x7f800001u);
      for (size_t i = 3 * width; i < 4 * width; ++i) k[i] *= 1e-38f;
      for (size_t i = 3 * width; i < 4 * width; ++i) v[i] *= 1e-30f;
      v[4 * width] = std::numeric_limits<float>::max();
      const KvRows rows = {k.data(), v.data(), 3 * dim, 3 * dim};
      TestPages expected(layer, page_bytes, tokens);
      StoreKv(IsaPath::kReference, layer, expected.table(), 0, rows, 0, tokens);
      for (IsaPath path : AvailableIsaPaths()) {
        TestPages pages(layer, page_bytes, tokens);
        StoreKv(path, layer, pages.table(), 0, rows, 0, tokens);
        EXPECT_TRUE(PageBytes(pages, page_bytes) == PageBytes(expected, page_bytes))
            << std::string(IsaPathName(path)) << " format " << static_cast<int>(format) << " dim "
            << dim;
      }
    }
  }
}

// The published rule, written the way the format's definition reads.
float NearestFp8(float value, double scale) {
  double best = 0;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    const double candidate = static_cast<double>(E4m3ToFloat(static_cast<uint8_t>(code))) * scale;
    const double distance = std::abs(candidate - static_cast<double>(value));
    const double best_distance = std::abs(best - static_cast<double>(value));
    if (distance < best_distance || (distance == best_distance && (code & 1) == 0))
      best = candidate;
  }
  return static_cast<float>(best);
}

float Fp8OfDefinition(float value, float amax) {
  if (amax == 0) return 0;
  double scale = std::exp2(-127);
  while (static_cast<double>(amax) / scale > 448) scale *= 2;
  return NearestFp8(value, scale);
}

TEST(KvStoreTest, LoadGivesBackWhatTheFormatKeeps) {
  for (KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kGqaFp8}) {
    for (int sink_rows : {0, 1}) {
      size_t page_bytes = 0;
      KvLayerView layer = TestLayer(format, 2, 48, 32, &page_bytes);
      layer.sink_rows = sink_rows;
      const std::vector<float> k = RandomRows(2 * 48 * 40, 3);
      const std::vector<float> v = RandomRows(2 * 48 * 40, 4);
      TestPages pages(layer, page_bytes, 45);
      StoreKv(BestIsaPath(), layer, pages.table(), 5, {k.data(), v.data(), 96, 96}, 0, 40);
      std::vector<float> k_back(96);
      std::vector<float> v_back(96);
      for (int r = 0; r < 40; ++r) {
        const int64_t slot = 5 + r + sink_rows;
        LoadKvSlot(layer, pages.table()[slot / 32], static_cast<int>(slot % 32), k_back.data(),
                   v_back.data());
        for (int i = 0; i < 96; ++i) {
          const float* head = k.data() + r * 96 + i / 48 * 48;
          float amax = 0;
          for (int d = 0; d < 48; ++d) amax = std::max(amax, std::abs(head[d]));
          const float value = k[static_cast<size_t>(r * 96 + i)];
          const float expected = format == KvFormat::kF32    ? value
                                 : format == KvFormat::kBf16 ? Bf16ToFloat(FloatToBf16(value))
                                                             : Fp8OfDefinition(value, amax);
          ASSERT_EQ(k_back[static_cast<size_t>(i)], expected) << r << " " << i;
        }
        for (int i = 0; i < 96; ++i) {
          const float value = v[static_cast<size_t>(r * 96 + i)];
          ASSERT_NEAR(v_back[static_cast<size_t>(i)], value,
                      std::abs(value) * 0.0626f + 8.0f * 0x1p-9f);
        }
      }
    }
  }
}

float Int8OfDefinition(float value, float amax) {
  if (amax == 0) return 0;
  uint16_t scale = 0x80;  // 2^-126
  while (static_cast<double>(Bf16ToFloat(scale)) * 127 < static_cast<double>(amax)) ++scale;
  const double step = static_cast<double>(Bf16ToFloat(scale));
  return static_cast<float>(std::nearbyint(static_cast<double>(value) / step) * step);
}

float LargestOf(const std::vector<float>& row) {
  float amax = 0;
  for (float value : row) amax = std::max(amax, std::abs(value));
  return amax;
}

// A row of gqa_fp8c with one scale: its values and the sum of their squared errors.
std::pair<std::vector<float>, double> Fp8Row(const std::vector<float>& row, double scale) {
  std::pair<std::vector<float>, double> kept;
  for (float value : row) {
    kept.first.push_back(NearestFp8(value, scale));
    const double error = static_cast<double>(kept.first.back()) - static_cast<double>(value);
    kept.second += error * error;
  }
  return kept;
}

// Of the 8 scales of three mantissa bits from the smallest that fits on, the one that loses least.
std::vector<float> Fp8cRowOfDefinition(const std::vector<float>& row) {
  int code = 0;
  const auto scale_of = [](int byte) { return (1 + byte % 8 / 8.0) * std::exp2(byte / 8 - 22); };
  while (static_cast<double>(LargestOf(row)) > 448 * scale_of(code)) ++code;
  auto best = Fp8Row(row, scale_of(code));
  for (int i = 1; i < 8; ++i) {
    auto other = Fp8Row(row, scale_of(code + i));
    if (other.second < best.second) best = other;
  }
  return best.first;
}

// What the store keeps of a row of one head: all values by the definition of the format.
std::vector<float> OfDefinition(KvFormat format, const std::vector<float>& row) {
  if (format == KvFormat::kGqaFp8c) return Fp8cRowOfDefinition(row);
  std::vector<float> kept;
  for (float value : row) kept.push_back(Int8OfDefinition(value, LargestOf(row)));
  return kept;
}

TEST(KvStoreTest, CentredFormatsKeepTheDistanceToTheCentreAndTheFirstTokenInTwoTerms) {
  constexpr int kHeads = 2;
  constexpr int kDim = 32;
  constexpr int kTokens = 40;
  for (KvFormat format : {KvFormat::kGqaFp8c, KvFormat::kGqaInt8c}) {
    for (int sink_rows : {0, 1}) {
      size_t page_bytes = 0;
      KvLayerView layer = TestLayer(format, kHeads, kDim, 32, &page_bytes);
      const std::vector<float> k = RandomRows(kHeads * kDim * kTokens, 3);
      const std::vector<float> v = RandomRows(kHeads * kDim * kTokens, 4);
      const std::vector<float> centres = RandomRows(2 * kHeads * kDim, 5);
      layer.sink_rows = sink_rows;
      layer.k_centre = centres.data();
      layer.v_centre = centres.data() + kHeads * kDim;
      TestPages pages(layer, page_bytes, kTokens);
      StoreKv(BestIsaPath(), layer, pages.table(), 0,
              {k.data(), v.data(), kHeads * kDim, kHeads * kDim}, 0, kTokens);
      std::vector<float> k_back(kHeads * kDim), v_back(kHeads * kDim);
      for (int t = 0; t < kTokens; ++t) {
        LoadKv(layer, pages.const_table(), t, k_back.data(), v_back.data());
        for (int head = 0; head < kHeads; ++head) {
          const auto check = [&](const std::vector<float>& x, const float* centre,
                                 const std::vector<float>& back) {
            std::vector<float> row;
            for (int d = 0; d < kDim; ++d) {
              row.push_back(x[static_cast<size_t>((t * kHeads + head) * kDim + d)] -
                            centre[head * kDim + d]);
            }
            std::vector<float> kept = OfDefinition(format, row);
            if (t == 0 && sink_rows == 1) {
              std::vector<float> missed;
              for (size_t d = 0; d < row.size(); ++d) missed.push_back(row[d] - kept[d]);
              const std::vector<float> second = OfDefinition(format, missed);
              for (size_t d = 0; d < row.size(); ++d) kept[d] += second[d];
            }
            for (int d = 0; d < kDim; ++d) {
              ASSERT_EQ(back[static_cast<size_t>(head * kDim + d)],
                        kept[static_cast<size_t>(d)] + centre[head * kDim + d])
                  << "token " << t << " head " << head << " channel " << d;
            }
          };
          check(k, layer.k_centre, k_back);
          check(v, layer.v_centre, v_back);
        }
      }
    }
  }
}

// Byte positions written out by hand: the layout is what two processes exchange.
TEST(KvStoreTest, BytesLieWhereTheLayoutSays) {
  size_t page_bytes = 0;
  const KvLayerView layer = TestLayer(KvFormat::kGqaFp8, 2, 32, 32, &page_bytes);
  ASSERT_EQ(layer.k_offset, 64u);
  ASSERT_EQ(layer.k_scale_offset, 64u + 2048);
  ASSERT_EQ(layer.v_offset, 64u + 2048 + 64);
  ASSERT_EQ(layer.v_scale_offset, 64u + 2048 + 64 + 2048);
  ASSERT_EQ(page_bytes, 64u + 2048 + 64 + 2048 + 64);
  std::vector<float> k(64, 0.0f);
  std::vector<float> v(64, 0.0f);
  k[32 + 9] = 3.5f;  // head 1, d = 9
  v[32 + 9] = -3.5f;
  TestPages pages(layer, page_bytes, 32);
  StoreKv(IsaPath::kReference, layer, pages.table(), 21, {k.data(), v.data(), 64, 64}, 0, 1);
  const std::byte* page = pages.table()[0];
  // 3.5 / 448 = 2^-7 exactly: scale byte 120 and code 448 = 0x7e, at token 5 of block 1 of head 1,
  // d = 4 * 2 + 1.
  const size_t k_at = 64 + 1 * 32 * 32 + 1 * 16 * 32 + 2 * 64 + 5 * 4 + 1;
  EXPECT_EQ(page[k_at], std::byte{0x7e});
  EXPECT_EQ(page[layer.k_scale_offset + 32 + 21], std::byte{120});
  EXPECT_EQ(page[layer.k_scale_offset + 21], std::byte{127});  // an all-zero row has scale 1
  EXPECT_EQ(page[layer.v_offset + (32 + 21) * 32 + 9], std::byte{0xfe});
  EXPECT_EQ(page[layer.v_scale_offset + 32 + 21], std::byte{120});
  // Nothing else was touched: 3 scales of 127 (K and V of head 0 ... two of them), two codes, two
  // scales of 120.
  size_t nonzero = 0;
  for (size_t i = 0; i < page_bytes; ++i) nonzero += page[i] != std::byte{0};
  EXPECT_EQ(nonzero, 6u);
}

TEST(KvStoreTest, ScalesOfThreeMantissaBitsAreThoseThatLoseLeast) {
  size_t page_bytes = 0;
  const KvLayerView layer = TestLayer(KvFormat::kGqaFp8c, 1, 16, 16, &page_bytes);
  std::vector<float> k(16, 0.0f);
  std::vector<float> v(16, 0.0f);
  k[3] = 448.0f * 1.375f;  // exact at 1.375, the smallest that fits
  v[3] = 1.0f;
  v[4] = 9 / 16.0f;  // both exact at 2^-8; the smallest that fits is 1.25 * 2^-9
  TestPages pages(layer, page_bytes, 16);
  StoreKv(BestIsaPath(), layer, pages.table(), 0, {k.data(), v.data(), 16, 16}, 0, 1);
  const auto byte = [&](uint32_t at) { return static_cast<uint8_t>(pages.table()[0][at]); };
  EXPECT_EQ(Ue5m3ToFloat(byte(layer.k_scale_offset)), 1.375f);
  EXPECT_EQ(byte(layer.k_offset + 3 % 4), 0x7e);
  EXPECT_EQ(Ue5m3ToFloat(byte(layer.v_scale_offset)), 0x1p-8f);
  std::vector<float> k_back(16), v_back(16);
  LoadKvSlot(layer, pages.table()[0], 0, k_back.data(), v_back.data());
  EXPECT_EQ(k_back, k);
  EXPECT_EQ(v_back, v);
}

TEST(KvStoreTest, Int8BytesLieWhereTheLayoutSays) {
  size_t page_bytes = 0;
  KvLayerView layer = TestLayer(KvFormat::kGqaInt8c, 2, 32, 32, &page_bytes);
  layer.sink_rows = 1;
  ASSERT_EQ(layer.k_scale_offset, 64u + 2048);
  ASSERT_EQ(layer.v_offset, 64u + 2048 + 128);
  ASSERT_EQ(page_bytes, 64u + 2048 + 128 + 2048 + 128);
  std::vector<float> k(64, 0.0f);
  std::vector<float> v(64, 0.0f);
  k[32 + 9] = 63.5f;  // head 1, d = 9
  v[32 + 9] = -63.5f;
  v[32 + 10] = 0.6f;
  TestPages pages(layer, page_bytes, 32);
  StoreKv(IsaPath::kReference, layer, pages.table(), 0, {k.data(), v.data(), 64, 64}, 0, 1);
  const std::byte* page = pages.table()[0];
  const auto scale = [&](uint32_t component, size_t row) {
    uint16_t bits;
    std::memcpy(&bits, page + component + row * 2, 2);
    return Bf16ToFloat(bits);
  };
  // 63.5 / 127 = 0.5: scale 0.5, code 127, at slot 1 of head 1. What is missed of v is 0.6 - 0.5.
  EXPECT_EQ(page[64 + 1 * 32 * 32 + 2 * 64 + 1 * 4 + 1], std::byte{127});
  EXPECT_EQ(page[layer.v_offset + (32 + 1) * 32 + 9], std::byte{0x81});
  EXPECT_EQ(page[layer.v_offset + (32 + 1) * 32 + 10], std::byte{1});
  EXPECT_EQ(scale(layer.k_scale_offset, 32 + 1), 0.5f);
  EXPECT_EQ(scale(layer.v_scale_offset, 32 + 1), 0.5f);
  EXPECT_EQ(scale(layer.k_scale_offset, 32), 1.0f);  // nothing is missed of k
  EXPECT_NEAR(scale(layer.v_scale_offset, 32), 0.1f / 127, 1e-5f);
  EXPECT_EQ(static_cast<int8_t>(page[layer.v_offset + 32 * 32 + 10]), 127);
}

TEST(KvStoreTest, RowsMayBeStridedAndStoredInPieces) {
  size_t page_bytes = 0;
  const KvLayerView layer = TestLayer(KvFormat::kGqaFp8, 2, 32, 16, &page_bytes);
  const std::vector<float> qkv = RandomRows(200 * 50, 9);
  const KvRows rows = {qkv.data() + 64, qkv.data() + 128, 200, 200};
  TestPages whole(layer, page_bytes, 57);
  TestPages pieces(layer, page_bytes, 57);
  StoreKv(BestIsaPath(), layer, whole.table(), 7, rows, 0, 50);
  StoreKv(BestIsaPath(), layer, pieces.table(), 7, rows, 17, 50);
  StoreKv(BestIsaPath(), layer, pieces.table(), 7, rows, 0, 17);
  EXPECT_TRUE(PageBytes(whole, page_bytes) == PageBytes(pieces, page_bytes));
}

TEST(KvStoreDeathTest, RefusesShapesItCannotLayOut) {
  size_t page_bytes = 0;
  const KvLayerView layer = TestLayer(KvFormat::kBf16, 1, 24, 16, &page_bytes);
  std::vector<float> row(24);
  TestPages pages(layer, page_bytes, 1);
  EXPECT_DEATH(
      StoreKv(IsaPath::kReference, layer, pages.table(), 0, {row.data(), row.data(), 24, 24}, 0, 1),
      "head_dim 24");
  KvLayerView centred = TestLayer(KvFormat::kGqaFp8c, 1, 32, 16, &page_bytes);
  centred.sink_rows = 2;
  EXPECT_DEATH(StoreKv(IsaPath::kReference, centred, pages.table(), 0,
                       {row.data(), row.data(), 24, 24}, 0, 1),
               "sink_rows 2");
}

}  // namespace
}  // namespace sluice::kernels
