// Small number formats: scalar conversions of bf16, f16, e4m3 (fn), UE8M0, UE5M3 and int8. The
// definition that vector code is tested against.
//
// Every function has internal linkage: files compiled for AVX-512 include this header too, and a
// shared inline function could reach a processor without AVX-512 through the linker's choice of
// copy.
#pragma once

#include <cstdint>
#include <cstring>

namespace sluice::kernels {

constexpr float kE4m3Max = 448.0f;

static inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float BitsFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline float Bf16ToFloat(uint16_t code) {
  return BitsFloat(static_cast<uint32_t>(code) << 16);
}

// Nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
static inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exact, subnormals, infinities and NaN included.
static inline float F16ToFloat(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t exponent = (code >> 10) & 0x1fu;
  const uint32_t mantissa = code & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return BitsFloat(sign | FloatBits(magnitude));
  }
  if (exponent == 31) return BitsFloat(sign | 0x7f800000u | (mantissa << 13));
  return BitsFloat(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// Nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
static inline uint16_t FloatToF16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u)
    return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the value in units of 2^-24 in the low mantissa bits, rounded
    // by the addition.
    const float shifted = BitsFloat(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (FloatBits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// Exact; codes 0x7f and 0xff are NaN.
static inline float E4m3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = (code >> 3) & 0xfu;
  const uint32_t mantissa = code & 0x7u;
  if (exponent == 15 && mantissa == 7) return BitsFloat(sign | 0x7fc00000u);
  if (exponent == 0) return BitsFloat(sign | FloatBits(static_cast<float>(mantissa) * 0x1p-9f));
  return BitsFloat(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// Nearest, ties to even, saturates at +-448. Never returns a NaN code: a NaN becomes +448, as
// min(x, 448) does in vector code.
static inline uint8_t FloatToE4m3(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7e;
  const uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7e);  // 448 and above
  if (magnitude < 0x3c800000u) {
    // Below 2^-6: adding 2^14 leaves the value in units of 2^-9 in the low mantissa bits, rounded
    // by the addition.
    const float shifted = BitsFloat(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (FloatBits(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

// UE8M0: byte b means 2^(b-127); b = 0..254 here (255, NaN, is never produced; it reads as NaN).
static inline float Ue8m0ToFloat(uint8_t code) {
  if (code == 255) return BitsFloat(0x7fc00000u);
  if (code == 0) return 0x1p-127f;
  return BitsFloat(static_cast<uint32_t>(code) << 23);
}

// 1 / Ue8m0ToFloat(code), exact: both are powers of two.
static inline float Ue8m0Inverse(uint8_t code) {
  return Ue8m0ToFloat(static_cast<uint8_t>(254 - (code > 254 ? 254 : code)));
}

// The scale of a row whose largest magnitude is `amax`: the smallest power of two with amax / scale
// <= 448; 127 (scale 1) for an all-zero row. Infinity and NaN give the largest scale.
static inline uint8_t Ue8m0ScaleFor(float amax) {
  const uint32_t magnitude = FloatBits(amax) & 0x7fffffffu;
  if (magnitude == 0) return 127;
  if (magnitude >= 0x7f800000u) return 254;
  // amax = m * 2^(exponent-127), 448 = 1.75 * 2^8: one more bit of scale when m > 1.75. Subnormals
  // end below 0: scale 0.
  const int exponent = static_cast<int>(magnitude >> 23);
  const int code = exponent - 8 + ((magnitude & 0x7fffffu) > 0x600000u ? 1 : 0);
  return static_cast<uint8_t>(code < 0 ? 0 : code);
}

// UE5M3: byte b means (1 + b % 8 / 8) * 2^(b / 8 - 22), from 2^-22 to 960; there is no zero and no
// NaN.
static inline float Ue5m3ToFloat(uint8_t code) {
  return BitsFloat((static_cast<uint32_t>(code) << 20) + ((127u - 22u) << 23));
}

// The smallest scale with amax / scale <= 448; 255 when there is none (infinity and NaN, too).
static inline uint8_t Ue5m3ScaleFor(float amax) {
  if (amax <= 0x1p-22f * 448) return 0;
  const uint32_t above = (FloatBits(amax * (1.0f / 448)) - FloatBits(0x1p-22f)) >> 20;
  uint32_t code = above > 255 ? 255 : above;
  if (code > 0) --code;  // the product was rounded
  while (code < 255 && !(amax <= 448 * Ue5m3ToFloat(static_cast<uint8_t>(code)))) ++code;
  return static_cast<uint8_t>(code);
}

// Rows of int8: value = code * scale, |code| <= 127, the scale a bf16. The scale of a row whose
// largest magnitude is `amax`: amax / 127 rounded up to bf16; 1 for an all-zero row. At least
// 2^-126, so that its reciprocal is finite; infinity and NaN give the scale of the largest float32.
static inline uint16_t Int8ScaleFor(float amax) {
  const uint32_t magnitude = FloatBits(amax) & 0x7fffffffu;
  if (magnitude == 0) return 0x3f80;
  const float finite = BitsFloat(magnitude > 0x7f7fffffu ? 0x7f7fffffu : magnitude);
  const float scale = finite / 127.0f;
  if (scale < 0x1p-126f) return 0x0080;
  return static_cast<uint16_t>((FloatBits(scale) + 0xffffu) >> 16);
}

// The code of value / scale: nearest, ties to even, saturates at +-127; a NaN becomes 127, as
// min(x, 127) does in vector code.
static inline int8_t FloatToInt8(float scaled) {
  if (!(scaled < 127.0f)) return 127;
  if (scaled < -127.0f) return -127;
  // Adding 1.5 * 2^23 leaves the integer in the low mantissa bits, rounded by the addition.
  return static_cast<int8_t>(FloatBits(scaled + 0x1.8p23f) - 0x4b400000u);
}

}  // namespace sluice::kernels
