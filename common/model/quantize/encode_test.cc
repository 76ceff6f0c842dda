#include "model/quantize/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/fp/fp.h"
#include "kernels/linear/weight_format.h"

namespace sluice::model {
namespace {

std::vector<float> Random(size_t count, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.Unit() - 0.5) * 0.1f;
  return values;
}

TEST(Encode, Int4IsWithinHalfAScaleAndReadsBack) {
  std::vector<float> x = Random(96, 1);
  std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
  x[64] = 1.0f;  // one large value: the others of its group get few codes
  std::vector<uint8_t> codes(48);
  std::vector<uint16_t> scales(3);
  EncodeInt4Row(x.data(), 96, codes.data(), scales.data());
  kernels::WeightRow row;
  row.data = codes.data();
  row.scales = reinterpret_cast<const uint8_t*>(scales.data());
  row.scale_type = kernels::ScaleType::kBf16;
  std::vector<float> back(96);
  kernels::DequantizeRow(kernels::WeightFormat::kInt4, row, 96, back.data());
  for (size_t i = 0; i < 96; ++i) {
    const float scale = kernels::Bf16ToFloat(scales[i / 32]);
    // amax is 7.5 scales, and the largest code 7: half a scale there too, plus the scale's
    // rounding.
    EXPECT_NEAR(back[i], x[i], 0.54f * scale) << i;
  }
  EXPECT_EQ(back[40], 0.0f);
  EXPECT_FLOAT_EQ(kernels::Bf16ToFloat(scales[2]),
                  kernels::Bf16ToFloat(kernels::FloatToBf16(1.0f / 7.5f)));
}

TEST(Encode, Fp8BlockUsesItsWholeRange) {
  constexpr int64_t kStride = 40;
  std::vector<float> x = Random(3 * kStride, 2);
  x[kStride + 5] = -0.9f;
  x[kStride + 39] = 100.0f;  // outside the block
  std::vector<uint8_t> codes(x.size(), 0xaa);
  const float scale = EncodeFp8Block(x.data(), 3, 32, kStride, codes.data());
  EXPECT_FLOAT_EQ(scale, 0.9f / 448);
  EXPECT_EQ(codes[kStride + 5], 0xfe);
  EXPECT_EQ(codes[kStride + 39], 0xaa);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 32; ++i) {
      const size_t at = static_cast<size_t>(r * kStride + i);
      const float back = kernels::E4m3ToFloat(codes[at]) * scale;
      EXPECT_NEAR(back, x[at], std::abs(x[at]) / 16 + scale * 0x1p-10f);
    }
  }
  const std::vector<float> zeros(4);
  EXPECT_EQ(EncodeFp8Block(zeros.data(), 1, 4, 4, codes.data()), 1.0f);
  EXPECT_EQ(codes[0], 0);
}

TEST(Encode, PaletteHoldsTheMostFrequentExponentsAndRowsAFewOthers) {
  std::array<uint64_t, 256> histogram = {};
  for (size_t i = 0; i < 20; ++i) histogram[100 + i] = 1000 - 10 * i;
  const auto palette = ChoosePalette(histogram);
  EXPECT_EQ(palette[0], 100);
  EXPECT_EQ(palette[15], 115);
  std::vector<uint16_t> x(33);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<uint16_t>((i % 3 == 0 ? 0x8000 : 0) | (100 + i % 16) << 7 | i);
  }
  x[4] = 0;        // exponent 0
  x[32] = 0x7f80;  // infinity
  std::vector<uint8_t> row(
      static_cast<size_t>(kernels::RowBytes(kernels::WeightFormat::kBf16Palette, 33)));
  ASSERT_TRUE(EncodePaletteRow(x.data(), 33, palette, row.data()));
  kernels::WeightRow stored;
  stored.data = row.data();
  stored.scales = palette.data();
  stored.scale_type = kernels::ScaleType::kPalette;
  std::vector<float> back(33);
  kernels::DequantizeRow(kernels::WeightFormat::kBf16Palette, stored, 33, back.data());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(kernels::FloatBits(back[i]), static_cast<uint32_t>(x[i]) << 16) << i;
  }
  x[5] = 0;  // one more than a row of 33 may have
  EXPECT_FALSE(EncodePaletteRow(x.data(), 33, palette, row.data()));
}

}  // namespace
}  // namespace sluice::model
