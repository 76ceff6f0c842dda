#include "model/quantize/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/fp/fp.h"
#include "kernels/linear/weight_format.h"

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

std::array<uint8_t, 16> ChoosePalette(const std::array<uint64_t, 256>& histogram) {
  std::array<uint8_t, 256> exponents;
  std::iota(exponents.begin(), exponents.end(), uint8_t{0});
  std::stable_sort(exponents.begin(), exponents.end(),
                   [&](uint8_t a, uint8_t b) { return histogram[a] > histogram[b]; });
  std::array<uint8_t, 16> palette;
  std::copy_n(exponents.begin(), palette.size(), palette.begin());
  return palette;
}

bool EncodePaletteRow(const uint16_t* x, int64_t k, const std::array<uint8_t, 16>& palette,
                      uint8_t* out) {
  std::array<int16_t, 256> index;
  index.fill(-1);
  for (size_t i = 0; i < palette.size(); ++i) index[palette[i]] = static_cast<int16_t>(i);
  uint8_t* const nibbles = out + k;
  uint8_t* miss = nibbles + (k + 1) / 2;
  uint8_t* const end = out + kernels::RowBytes(kernels::WeightFormat::kBf16Palette, k);
  std::memset(nibbles, 0, static_cast<size_t>(miss - nibbles));
  std::memset(miss, 0xff, static_cast<size_t>(end - miss));
  for (int64_t i = 0; i < k; ++i) {
    out[i] = static_cast<uint8_t>((x[i] >> 8 & 0x80) | (x[i] & 0x7f));
    const int16_t place = index[x[i] >> 7 & 0xff];
    if (place >= 0) {
      nibbles[i / 2] = static_cast<uint8_t>(nibbles[i / 2] | place << (i % 2 * 4));
      continue;
    }
    if (miss == end) return false;
    const uint32_t element = static_cast<uint32_t>(i);
    std::memcpy(miss, &element, sizeof(element));
    std::memcpy(miss + 4, &x[i], sizeof(x[i]));
    miss += kernels::kPaletteMissBytes;
  }
  return true;
}

void EncodeBf16Row(const float* x, int64_t k, uint16_t* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = kernels::FloatToBf16(x[i]);
}

}  // namespace sluice::model
