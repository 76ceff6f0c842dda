#include "kernels/fp/fp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace sluice::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Value of a code by the formula of the format: sign, 2^(e - bias) * 1.m, subnormals at e = 0.
double FormulaValue(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa =
      static_cast<double>(code & ((1u << mantissa_bits) - 1)) / (1u << mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1.0 + mantissa, exponent - bias);
  return (code >> (exponent_bits + mantissa_bits)) & 1 ? -magnitude : magnitude;
}

// Checks an encoder between each pair of neighbouring positive codes 0..last: both ends, the
// midpoint (tie to even) and the floats just below and above the midpoint.
template <typename Encode, typename Decode>
void CheckRounding(uint32_t last, uint32_t sign_bit, Encode encode, Decode decode) {
  for (uint32_t code = 0; code < last; ++code) {
    const float low = decode(code);
    const float high = decode(code + 1);
    const float middle = low + (high - low) / 2;
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(encode(low), code);
    ASSERT_EQ(encode(middle), even) << code;
    ASSERT_EQ(encode(std::nextafter(middle, 0.0f)), code);
    ASSERT_EQ(encode(std::nextafter(middle, kInf)), code + 1);
    ASSERT_EQ(encode(-low), code | sign_bit);
    ASSERT_EQ(encode(-middle), even | sign_bit);
  }
  EXPECT_EQ(encode(decode(last)), last);
}

TEST(E4m3, EveryCodeDecodesByTheFormula) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, FormulaValue(code, 4, 3)) << code;
      EXPECT_EQ(std::signbit(value), code >= 128);
    }
  }
}

TEST(E4m3, RoundsToNearestEvenBetweenAllNeighbours) {
  CheckRounding(
      0x7e, 0x80, [](float x) { return uint32_t{FloatToE4m3(x)}; },
      [](uint32_t code) { return E4m3ToFloat(static_cast<uint8_t>(code)); });
}

TEST(E4m3, SaturatesAndNeverStoresNan) {
  for (float big : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, kInf}) {
    EXPECT_EQ(FloatToE4m3(big), 0x7e);
    EXPECT_EQ(FloatToE4m3(-big), 0xfe);
  }
  EXPECT_EQ(FloatToE4m3(kNan), 0x7e);
  EXPECT_EQ(FloatToE4m3(-kNan), 0x7e);
  EXPECT_EQ(FloatToE4m3(1e-45f), 0);
  SeededRandom random(1);
  for (int i = 0; i < 1000000; ++i) {
    const uint8_t code = FloatToE4m3(BitsFloat(static_cast<uint32_t>(random.Next64())));
    ASSERT_NE(code & 0x7f, 0x7f);
  }
}

TEST(F16, EveryCodeDecodesByTheFormulaAndEncodesBack) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = F16ToFloat(static_cast<uint16_t>(code));
    const uint32_t exponent = (code >> 10) & 31;
    if (exponent == 31 && (code & 0x3ff) != 0) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
      continue;
    }
    if (exponent == 31) {
      ASSERT_EQ(value, code & 0x8000 ? -kInf : kInf);
    } else {
      ASSERT_EQ(value, FormulaValue(code, 5, 10)) << code;
    }
    ASSERT_EQ(FloatToF16(value), code);
  }
}

TEST(F16, RoundsToNearestEvenAndOverflowsToInfinity) {
  CheckRounding(
      0x7bff, 0x8000, [](float x) { return uint32_t{FloatToF16(x)}; },
      [](uint32_t code) { return F16ToFloat(static_cast<uint16_t>(code)); });
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-kInf), 0xfc00);
}

TEST(Bf16, EveryCodeRoundTripsAndTiesGoToEven) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else {
      ASSERT_EQ(FloatToBf16(value), code);
    }
  }
  for (uint32_t code = 0; code < 0x7f80; ++code) {
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(FloatToBf16(BitsFloat((code << 16) | 0x8000u)), even);
    ASSERT_EQ(FloatToBf16(BitsFloat((code << 16) | 0x7fffu)), code);
    ASSERT_EQ(FloatToBf16(BitsFloat((code << 16) | 0x8001u)), code + 1);
  }
}

TEST(Ue8m0, EveryCodeIsAPowerOfTwoWithAnExactInverse) {
  for (int code = 0; code < 255; ++code) {
    const uint8_t byte = static_cast<uint8_t>(code);
    ASSERT_EQ(Ue8m0ToFloat(byte), std::ldexp(1.0f, code - 127));
    ASSERT_EQ(double{Ue8m0ToFloat(byte)} * double{Ue8m0Inverse(byte)}, 1.0);
  }
  EXPECT_TRUE(std::isnan(Ue8m0ToFloat(255)));
}

TEST(Ue5m3, EveryCodeIsItsDefinitionAndLargerThanTheOneBefore) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    ASSERT_EQ(Ue5m3ToFloat(byte),
              std::ldexp(1.0f + static_cast<float>(code % 8) / 8, code / 8 - 22));
  }
}

TEST(Ue5m3, ScaleIsTheSmallestThatFits448) {
  EXPECT_EQ(Ue5m3ScaleFor(0.0f), 0);
  EXPECT_EQ(Ue5m3ScaleFor(kInf), 255);
  EXPECT_EQ(Ue5m3ScaleFor(kNan), 255);
  EXPECT_EQ(Ue5m3ScaleFor(std::numeric_limits<float>::max()), 255);
  std::vector<float> amaxes = {1e-45f, 1e-38f, 1e-5f, 1.0f, 429000.0f};
  SeededRandom random(2);
  for (int i = 0; i < 200000; ++i)
    amaxes.push_back(static_cast<float>(std::exp2(random.Unit() * 50 - 30)));
  for (int code = 0; code < 256; ++code) {
    const float border = 448 * Ue5m3ToFloat(static_cast<uint8_t>(code));
    amaxes.insert(amaxes.end(),
                  {border, std::nextafter(border, 0.0f), std::nextafter(border, kInf)});
  }
  for (float amax : amaxes) {
    const int code = Ue5m3ScaleFor(amax);
    if (code < 255) {
      ASSERT_LE(amax, 448 * Ue5m3ToFloat(static_cast<uint8_t>(code))) << amax;
    }
    if (code > 0) {
      ASSERT_GT(amax, 448 * Ue5m3ToFloat(static_cast<uint8_t>(code - 1))) << amax;
    }
  }
}

TEST(Ue8m0, ScaleIsTheSmallestPowerOfTwoThatFits448) {
  EXPECT_EQ(Ue8m0ScaleFor(0.0f), 127);
  EXPECT_EQ(Ue8m0ScaleFor(448.0f), 127);
  EXPECT_EQ(Ue8m0ScaleFor(std::nextafter(448.0f, kInf)), 128);
  EXPECT_EQ(Ue8m0ScaleFor(kInf), 254);
  EXPECT_EQ(Ue8m0ScaleFor(kNan), 254);
  std::vector<float> amaxes = {
      1e-45f, 1e-40f, 1e-38f, 1.0f, 3.0f, 1e30f, std::numeric_limits<float>::max()};
  SeededRandom random(2);
  for (int i = 0; i < 200000; ++i) {
    amaxes.push_back(BitsFloat(static_cast<uint32_t>(random.Next64()) & 0x7fffffffu));
  }
  for (int code = 1; code < 247; ++code) {  // the borders: 448 * 2^s and its neighbours
    const float border = std::ldexp(448.0f, code - 127);
    amaxes.insert(amaxes.end(),
                  {border, std::nextafter(border, 0.0f), std::nextafter(border, kInf)});
  }
  for (float amax : amaxes) {
    if (std::isnan(amax) || std::isinf(amax) || amax == 0) continue;
    const uint8_t code = Ue8m0ScaleFor(amax);
    const double scale = Ue8m0ToFloat(code);
    ASSERT_LE(amax / scale, 448.0) << amax;
    if (code > 0) {
      ASSERT_GT(amax / (scale / 2), 448.0) << amax;
    }
  }
}

TEST(Int8, ScaleIsTheSmallestBf16ThatFits127) {
  EXPECT_EQ(Int8ScaleFor(0.0f), FloatToBf16(1.0f));
  EXPECT_EQ(Int8ScaleFor(127.0f), FloatToBf16(1.0f));
  EXPECT_EQ(Int8ScaleFor(kInf), Int8ScaleFor(std::numeric_limits<float>::max()));
  EXPECT_EQ(Int8ScaleFor(kNan), Int8ScaleFor(std::numeric_limits<float>::max()));
  EXPECT_EQ(Bf16ToFloat(Int8ScaleFor(1e-45f)), 0x1p-126f);
  SeededRandom random(3);
  for (int i = 0; i < 200000; ++i) {
    const float amax = BitsFloat(static_cast<uint32_t>(random.Next64()) & 0x7fffffffu);
    if (!(amax < kInf) || amax < 127 * 0x1p-126f) continue;
    const uint16_t code = Int8ScaleFor(amax);
    // The division rounds to float32 before the result is rounded up.
    const double needed = amax / 127.0;
    ASSERT_GE(Bf16ToFloat(code), needed * (1 - 0x1p-24)) << amax;
    ASSERT_LT(Bf16ToFloat(static_cast<uint16_t>(code - 1)), needed * (1 + 0x1p-24)) << amax;
    ASSERT_GE(FloatToInt8(amax / Bf16ToFloat(code)), 126) << amax;  // bf16 steps are 2^-8
  }
}

TEST(Int8, CodesAreTheNearestTiesToEven) {
  for (int i = -200 * 64; i <= 200 * 64; ++i) {
    const float value = static_cast<float>(i) / 64;
    const double nearest = std::nearbyint(value);
    ASSERT_EQ(FloatToInt8(value), std::clamp(nearest, -127.0, 127.0)) << value;
  }
  EXPECT_EQ(FloatToInt8(kInf), 127);
  EXPECT_EQ(FloatToInt8(-kInf), -127);
  EXPECT_EQ(FloatToInt8(kNan), 127);
}

}  // namespace
}  // namespace sluice::kernels
