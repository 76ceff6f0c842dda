#include "model/quantize/encode.h"

#include <algorithm>
#include <cmath>

#include "kernels/fp/fp.h"

namespace sluice::model {
namespace {

float LargestMagnitude(const float* x, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

}  // namespace

void EncodeInt4Row(const float* x, int64_t k, uint8_t* codes, uint16_t* scales) {
  for (int64_t group = 0; group < k / kInt4Group; ++group) {
    const float* const values = x + group * kInt4Group;
    uint16_t scale = kernels::FloatToBf16(LargestMagnitude(values, kInt4Group) / 7.5f);
    if (scale == 0) scale = kernels::FloatToBf16(1.0f);
    scales[group] = scale;
    const float divisor = kernels::Bf16ToFloat(scale);
    uint8_t* const out = codes + group * kInt4Group / 2;
    for (int64_t i = 0; i < kInt4Group; i += 2) {
      const auto code = [&](int64_t at) {
        const float rounded = std::nearbyint(values[at] / divisor);
        return static_cast<int>(std::clamp(rounded, -8.0f, 7.0f)) + 8;
      };
      out[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
    }
  }
}

float EncodeFp8Block(const float* x, int64_t rows, int64_t columns, int64_t stride,
                     uint8_t* codes) {
  float largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    largest = std::max(largest, LargestMagnitude(x + r * stride, columns));
  }
  const float scale = largest > 0 ? largest / kernels::kE4m3Max : 1.0f;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      codes[r * stride + i] = kernels::FloatToE4m3(x[r * stride + i] / scale);
    }
  }
  return scale;
}

void EncodeBf16Row(const float* x, int64_t k, uint16_t* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = kernels::FloatToBf16(x[i]);
}

}  // namespace sluice::model
