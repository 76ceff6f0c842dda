#include "kernels/linear/weight_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/fp/fp.h"

namespace sluice::kernels {
namespace {

void PutF16(std::vector<uint8_t>& bytes, size_t at, float value) {
  const uint16_t half = FloatToF16(value);
  std::memcpy(bytes.data() + at, &half, sizeof(half));
}

std::vector<float> Dequantize(WeightFormat format, const std::vector<uint8_t>& row) {
  const int64_t k = static_cast<int64_t>(row.size()) / BlockBytes(format) * BlockElements(format);
  std::vector<float> out(static_cast<size_t>(k));
  DequantizeRow(format, {row.data()}, k, out.data());
  return out;
}

TEST(WeightFormat, RowBytesCountBlocks) {
  EXPECT_EQ(RowBytes(WeightFormat::kF32, 7), 28);
  EXPECT_EQ(RowBytes(WeightFormat::kBf16, 7), 14);
  EXPECT_EQ(RowBytes(WeightFormat::kQ8_0, 64), 68);
  EXPECT_EQ(RowBytes(WeightFormat::kQ4_1, 576), 360);
  EXPECT_EQ(RowBytes(WeightFormat::kQ6_K, 512), 420);
  EXPECT_EQ(RowBytes(WeightFormat::kQ4_K, 0), 0);
  EXPECT_DEATH(RowBytes(WeightFormat::kQ4_K, 32), "Q4_K");
}

TEST(WeightFormat, UnquantisedElementsAreExact) {
  EXPECT_EQ(Dequantize(WeightFormat::kF32, {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}),
            (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(Dequantize(WeightFormat::kF16, {0x00, 0x3c, 0x01, 0x00}),
            (std::vector<float>{1.0f, 0x1p-24f}));
  EXPECT_EQ(Dequantize(WeightFormat::kBf16, {0x80, 0x3f, 0x40, 0xc0}),
            (std::vector<float>{1.0f, -3.0f}));
}

TEST(WeightFormat, Q8_0IsSignedBytesTimesScale) {
  std::vector<uint8_t> row(68);
  PutF16(row, 0, 0.5f);
  PutF16(row, 34, -2.0f);
  for (size_t i = 0; i < 32; ++i) row[2 + i] = static_cast<uint8_t>(i * 8);
  row[36] = 0x80;
  const std::vector<float> out = Dequantize(WeightFormat::kQ8_0, row);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(out[i],
              0.5f * (i < 16 ? static_cast<float>(i) * 8 : static_cast<float>(i) * 8 - 256));
  }
  EXPECT_EQ(out[32], 256.0f);
  EXPECT_EQ(out[33], 0.0f);
}

// Nibble byte i = low code i % 16, high code 15 - i; fifth bits set for elements 0, 17 and 31.
std::vector<uint8_t> NibbleRow(bool affine, bool fifth_bit) {
  std::vector<uint8_t> row(18 + (affine ? 2 : 0) + (fifth_bit ? 4 : 0));
  PutF16(row, 0, 0.25f);
  size_t at = 2;
  if (affine) {
    PutF16(row, at, -1.5f);
    at += 2;
  }
  if (fifth_bit) {
    const uint32_t bits = 1u | 1u << 17 | 1u << 31;
    std::memcpy(row.data() + at, &bits, 4);
    at += 4;
  }
  for (size_t i = 0; i < 16; ++i) row[at + i] = static_cast<uint8_t>(i | (15 - i) << 4);
  return row;
}

TEST(WeightFormat, NibbleFormatsOrderAndOffset) {
  const struct {
    WeightFormat format;
    bool affine;
    bool fifth_bit;
  } cases[] = {{WeightFormat::kQ4_0, false, false},
               {WeightFormat::kQ4_1, true, false},
               {WeightFormat::kQ5_0, false, true},
               {WeightFormat::kQ5_1, true, true}};
  for (const auto& c : cases) {
    const std::vector<float> out = Dequantize(c.format, NibbleRow(c.affine, c.fifth_bit));
    ASSERT_EQ(out.size(), 32u);
    for (int i = 0; i < 32; ++i) {
      int code = i < 16 ? i : 31 - i;
      if (c.fifth_bit && (i == 0 || i == 17 || i == 31)) code += 16;
      const float expected = c.affine ? static_cast<float>(code) * 0.25f - 1.5f
                                      : static_cast<float>(code - (c.fifth_bit ? 16 : 8)) * 0.25f;
      EXPECT_EQ(out[static_cast<size_t>(i)], expected) << WeightFormatName(c.format) << " " << i;
    }
  }
}

// Super-block with scale j = 2j + 33 and minimum j = 50 - j (both need all six bits for some j),
// packed by hand: bytes 0..3 = scales 0..3 with bits 4-5 of scales 4..7 on top, bytes 4..7 the same
// for minima, bytes 8..11 the low nibbles of scales and minima 4..7.
void PutKScales(std::vector<uint8_t>& row, size_t at) {
  for (size_t j = 0; j < 4; ++j) {
    const size_t scale = 2 * j + 33;
    const size_t high_scale = 2 * (j + 4) + 33;
    const size_t minimum = 50 - j;
    const size_t high_minimum = 50 - (j + 4);
    row[at + j] = static_cast<uint8_t>(scale | high_scale >> 4 << 6);
    row[at + 4 + j] = static_cast<uint8_t>(minimum | high_minimum >> 4 << 6);
    row[at + 8 + j] = static_cast<uint8_t>((high_scale & 15) | (high_minimum & 15) << 4);
  }
}

TEST(WeightFormat, Q4_KAndQ5_KUseSixBitScalesAndMinima) {
  for (bool fifth_bit : {false, true}) {
    std::vector<uint8_t> row(fifth_bit ? 176 : 144);
    PutF16(row, 0, 0.5f);
    PutF16(row, 2, 0.125f);
    PutKScales(row, 4);
    const size_t nibbles = fifth_bit ? 48 : 16;
    for (size_t i = 0; i < 128; ++i)
      row[nibbles + i] = static_cast<uint8_t>((i % 16) | (i / 32) << 4);
    if (fifth_bit) {
      for (size_t i = 0; i < 32; ++i) row[16 + i] = i == 5 ? 0b10000101 : 0;  // sub-blocks 0, 2, 7
    }
    const std::vector<float> out =
        Dequantize(fifth_bit ? WeightFormat::kQ5_K : WeightFormat::kQ4_K, row);
    for (int e = 0; e < 256; ++e) {
      const int j = e / 32;
      const int i = e % 32;
      int code = j % 2 == 0 ? i % 16 : j / 2;
      if (fifth_bit && i == 5 && (j == 0 || j == 2 || j == 7)) code += 16;
      const float expected =
          0.5f * static_cast<float>((2 * j + 33) * code) - 0.125f * static_cast<float>(50 - j);
      EXPECT_EQ(out[static_cast<size_t>(e)], expected) << e;
    }
  }
}

TEST(WeightFormat, Q6_KInterleavesQuartersOfEachHalf) {
  std::vector<uint8_t> row(210);
  const auto code_of = [](int e) { return (e * 7 + e / 32) % 64; };
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128;
    const int quarter = e % 128 / 32;
    const int l = e % 32;
    const int code = code_of(e);
    uint8_t& low = row[static_cast<size_t>(half * 64 + quarter % 2 * 32 + l)];
    low = static_cast<uint8_t>(low | (code & 15) << (quarter < 2 ? 0 : 4));
    uint8_t& high = row[static_cast<size_t>(128 + half * 32 + l)];
    high = static_cast<uint8_t>(high | code >> 4 << (2 * quarter));
  }
  for (size_t s = 0; s < 16; ++s) row[192 + s] = static_cast<uint8_t>(s * 16 + 3);
  PutF16(row, 208, 0.25f);
  const std::vector<float> out = Dequantize(WeightFormat::kQ6_K, row);
  for (int e = 0; e < 256; ++e) {
    const int scale = static_cast<int8_t>(e / 16 * 16 + 3);
    EXPECT_EQ(out[static_cast<size_t>(e)], 0.25f * static_cast<float>(scale * (code_of(e) - 32)))
        << e;
  }
}

TEST(WeightFormat, Fp8ScalesServe128ElementsOrTheRow) {
  std::vector<uint8_t> codes(130, FloatToE4m3(1.5f));
  codes[1] = FloatToE4m3(-0.001953125f);  // the smallest subnormal
  const float scales[2] = {2.0f, -0.25f};
  WeightRow row;
  row.data = codes.data();
  row.scales = reinterpret_cast<const uint8_t*>(scales);
  row.scale_type = ScaleType::kF32;
  std::vector<float> out(130);
  DequantizeRow(WeightFormat::kFp8Block, row, 130, out.data());
  EXPECT_EQ(out[0], 3.0f);
  EXPECT_EQ(out[1], -0x1p-8f);
  EXPECT_EQ(out[127], 3.0f);
  EXPECT_EQ(out[128], -0.375f);
  EXPECT_EQ(RowScales(WeightFormat::kFp8Block, 130), 2);
  DequantizeRow(WeightFormat::kFp8Channel, row, 130, out.data());
  EXPECT_EQ(out[129], 3.0f);
}

TEST(WeightFormat, Int4CodesStartInTheLowNibbleAndHaveOffset8) {
  std::vector<uint8_t> codes(32, 0x88);
  codes[0] = 0xf0;   // elements 0 and 1: -8 and 7
  codes[16] = 0x79;  // elements 32 and 33: 1 and -1
  const uint16_t scales[2] = {FloatToBf16(0.5f), FloatToBf16(-3.0f)};
  WeightRow row;
  row.data = codes.data();
  row.scales = reinterpret_cast<const uint8_t*>(scales);
  row.scale_type = ScaleType::kBf16;
  std::vector<float> out(64);
  DequantizeRow(WeightFormat::kInt4, row, 64, out.data());
  EXPECT_EQ(out[0], -4.0f);
  EXPECT_EQ(out[1], 3.5f);
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(out[32], -3.0f);
  EXPECT_EQ(out[33], 3.0f);
}

TEST(WeightFormat, NvFp4IsE2m1TimesScaleTimesFactor) {
  std::vector<uint8_t> codes(16);
  for (size_t i = 0; i < 8; ++i) codes[i] = static_cast<uint8_t>(2 * i | (2 * i + 1) << 4);
  codes[8] = 0x2f;  // elements 16 and 17: -6 and 1
  const uint8_t scales[2] = {FloatToE4m3(2.0f), FloatToE4m3(0.5f)};
  WeightRow row;
  row.data = codes.data();
  row.scales = scales;
  row.scale_type = ScaleType::kE4m3;
  row.factor = 0.25f;
  std::vector<float> out(32);
  DequantizeRow(WeightFormat::kNvFp4, row, 32, out.data());
  const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(out[i], (i < 8 ? 0.5f : -0.5f) * magnitudes[i % 8]) << i;
  }
  EXPECT_EQ(out[16], -0.75f);
  EXPECT_EQ(out[17], 0.125f);
}

TEST(WeightFormat, PaletteIsBf16WithSharedExponents) {
  const uint8_t palette[16] = {127, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 120};
  std::vector<uint8_t> bytes(static_cast<size_t>(RowBytes(WeightFormat::kBf16Palette, 3)), 0xff);
  ASSERT_EQ(bytes.size(), 3u + 2u + 2u * 6u);
  bytes[0] = 0x00;  // 1.0
  bytes[1] = 0xc0;  // -3.0
  bytes[2] = 0x01;  // overwritten by the miss
  bytes[3] = 0x10;  // indices 0 and 1
  bytes[4] = 0x0f;  // index 15
  const uint32_t element = 2;
  const uint16_t miss = 0x0081;  // exponent 1
  std::memcpy(bytes.data() + 5, &element, 4);
  std::memcpy(bytes.data() + 9, &miss, 2);
  WeightRow row;
  row.data = bytes.data();
  row.scales = palette;
  row.scale_type = ScaleType::kPalette;
  float out[3];
  DequantizeRow(WeightFormat::kBf16Palette, row, 3, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -3.0f);
  EXPECT_EQ(out[2], Bf16ToFloat(0x0081));
}

}  // namespace
}  // namespace sluice::kernels
