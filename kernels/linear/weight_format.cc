#include "kernels/linear/weight_format.h"

#include <cstring>

#include "base/check.h"
#include "kernels/fp/fp.h"
#include "kernels/linear/code_block.h"
#include "kernels/linear/paths.h"

namespace sluice::kernels {
namespace {

struct FormatInfo {
  const char* name;
  int64_t elements;
  int64_t bytes;
};

// Indexed by WeightFormat.
constexpr FormatInfo kFormats[] = {
    {"F32", 1, 4},         {"F16", 1, 2},      {"BF16", 1, 2},     {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},      {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},
    {"Q4_K", 256, 144},    {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"FP8_BLOCK", 1, 1},
    {"FP8_CHANNEL", 1, 1}, {"INT4", 32, 16},   {"NVFP4", 16, 8},   {"BF16_PALETTE", 1, 0}};

constexpr int64_t kFp8BlockElements = 128;

// Magnitudes of e2m1 codes.
constexpr float kE2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

const FormatInfo& Info(WeightFormat format) { return kFormats[static_cast<int>(format)]; }

uint16_t Load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

float LoadF16(const uint8_t* p) { return F16ToFloat(Load16(p)); }

// [d][32 x int8].
void LoadQ8_0(const uint8_t* block, CodeBlock* out) {
  out->scales[0] = out->scales[1] = LoadF16(block);
  for (int i = 0; i < 32; ++i) out->codes[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
}

// The 32-element formats of 4 and 5 bits: [d][m if affine][u32 of fifth bits if 5][16 bytes of
// nibbles].
void LoadNibbles(const uint8_t* block, bool affine, bool fifth_bit, CodeBlock* out) {
  out->scales[0] = out->scales[1] = LoadF16(block);
  out->minimum = affine ? LoadF16(block + 2) : 0.0f;
  const uint8_t* fifth = block + (affine ? 4 : 2);
  const uint8_t* nibbles = fifth + (fifth_bit ? 4 : 0);
  for (int i = 0; i < 32; ++i) {
    int code = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
    if (fifth_bit) code |= (fifth[i / 8] >> (i % 8) & 1) << 4;
    out->codes[i] = static_cast<uint8_t>(code);
  }
}

// Sub-block j (0..7) of a Q4_K or Q5_K super-block of 256:
// [d][dmin][12 bytes of 6-bit scales and minima][32 bytes of fifth bits if 5][128 bytes of
// nibbles].
void LoadQ45_K(const uint8_t* block, bool fifth_bit, int j, CodeBlock* out) {
  const uint8_t* packed = block + 4;
  int scale;
  int minimum;
  if (j < 4) {
    scale = packed[j] & 63;
    minimum = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    minimum = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
  }
  out->scales[0] = out->scales[1] = LoadF16(block) * static_cast<float>(scale);
  out->minimum = -(LoadF16(block + 2) * static_cast<float>(minimum));
  const uint8_t* fifth = block + 16;
  const uint8_t* nibbles = fifth + (fifth_bit ? 32 : 0) + j / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    int code = j % 2 == 0 ? nibbles[i] & 15 : nibbles[i] >> 4;
    if (fifth_bit) code |= (fifth[i] >> j & 1) << 4;
    out->codes[i] = static_cast<uint8_t>(code);
  }
}

// Sub-block j (0..7) of a Q6_K super-block of 256:
// [128 bytes of low nibbles][64 bytes of high bit pairs][16 x int8 scale][d], two halves of 128
// elements.
void LoadQ6_K(const uint8_t* block, int j, CodeBlock* out) {
  const int half = j / 4;
  const int quarter = j % 4;  // low nibbles for 0 and 1, high ones for 2 and 3
  const uint8_t* low = block + half * 64 + quarter % 2 * 32;
  const uint8_t* high = block + 128 + half * 32;
  const float d = LoadF16(block + 208);
  for (int group = 0; group < 2; ++group) {
    out->scales[group] = d * static_cast<float>(static_cast<int8_t>(block[192 + 2 * j + group]));
  }
  for (int i = 0; i < 32; ++i) {
    const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
    out->codes[i] = static_cast<uint8_t>(nibble | (high[i] >> (2 * quarter) & 3) << 4);
  }
}

// Sixteen or 32 codes of 4 bits, the first in the low nibble of the first byte.
void LoadLowFirst(const uint8_t* bytes, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4);
  }
}

void LoadInt4(const WeightRow& row, int64_t index, CodeBlock* out) {
  out->scales[0] = out->scales[1] = LoadScale(row, index);
  LoadLowFirst(row.data + index * 16, 32, out->codes);
}

// The last block of a row may be half: the other half is zero.
void LoadNvFp4(const WeightRow& row, int64_t k, int64_t index, CodeBlock* out) {
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t group = 2 * index + half;
    const bool there = group * 16 < k;
    out->scales[half] = there ? LoadScale(row, group) : 0.0f;
    if (there) {
      LoadLowFirst(row.data + group * 8, 16, out->codes + 16 * half);
    } else {
      std::memset(out->codes + 16 * half, 0, 16);
    }
  }
}

void DequantizeFp8(WeightFormat format, const WeightRow& row, int64_t k, float* out) {
  const int64_t group = format == WeightFormat::kFp8Block ? kFp8BlockElements : k;
  for (int64_t begin = 0; begin < k; begin += group) {
    const float scale = LoadScale(row, begin / group);
    const int64_t end = begin + group < k ? begin + group : k;
    for (int64_t i = begin; i < end; ++i) out[i] = E4m3ToFloat(row.data[i]) * scale;
  }
}

void DequantizeNvFp4(const WeightRow& row, int64_t k, float* out) {
  uint8_t codes[16];
  for (int64_t group = 0; group < k / 16; ++group) {
    const float scale = LoadScale(row, group) * row.factor;
    LoadLowFirst(row.data + group * 8, 16, codes);
    for (int i = 0; i < 16; ++i) {
      const float magnitude = kE2m1[codes[i] & 7] * scale;
      out[group * 16 + i] = codes[i] < 8 ? magnitude : -magnitude;
    }
  }
}

void DequantizePalette(const WeightRow& row, int64_t k, float* out) {
  const uint8_t* const nibbles = row.data + k;
  for (int64_t i = 0; i < k; ++i) {
    const int nibble = i % 2 == 0 ? nibbles[i / 2] & 15 : nibbles[i / 2] >> 4;
    const int code = (row.data[i] & 0x80) << 8 | row.scales[nibble] << 7 | (row.data[i] & 0x7f);
    out[i] = Bf16ToFloat(static_cast<uint16_t>(code));
  }
  for (int64_t m = 0; m < PaletteMisses(k); ++m) {
    const PaletteMiss miss = LoadPaletteMiss(row, k, m);
    if (miss.element < k) out[miss.element] = Bf16ToFloat(miss.bf16);
  }
}

}  // namespace

PaletteMiss LoadPaletteMiss(const WeightRow& row, int64_t k, int64_t index) {
  const uint8_t* const entry = row.data + k + (k + 1) / 2 + index * kPaletteMissBytes;
  uint32_t element;
  std::memcpy(&element, entry, sizeof(element));
  return {element, Load16(entry + 4)};
}

absl::string_view WeightFormatName(WeightFormat format) { return Info(format).name; }
int64_t BlockElements(WeightFormat format) { return Info(format).elements; }
int64_t BlockBytes(WeightFormat format) { return Info(format).bytes; }

int64_t RowBytes(WeightFormat format, int64_t k) {
  SLUICE_CHECK(k >= 0 && k % BlockElements(format) == 0)
      << "a row of " << k << " elements in " << Info(format).name;
  if (format == WeightFormat::kBf16Palette) {
    return k + (k + 1) / 2 + PaletteMisses(k) * kPaletteMissBytes;
  }
  return k / BlockElements(format) * BlockBytes(format);
}

int64_t RowScales(WeightFormat format, int64_t k) {
  switch (format) {
    case WeightFormat::kFp8Block:
      return (k + kFp8BlockElements - 1) / kFp8BlockElements;
    case WeightFormat::kFp8Channel:
      return 1;
    case WeightFormat::kInt4:
      return k / 32;
    case WeightFormat::kNvFp4:
      return k / 16;
    default:
      return 0;
  }
}

float LoadScale(const WeightRow& row, int64_t index) {
  switch (row.scale_type) {
    case ScaleType::kNone:
      break;
    case ScaleType::kF32: {
      float value;
      std::memcpy(&value, row.scales + 4 * index, sizeof(value));
      return value;
    }
    case ScaleType::kBf16:
      return Bf16ToFloat(Load16(row.scales + 2 * index));
    case ScaleType::kE4m3:
      return E4m3ToFloat(row.scales[index]);
    case ScaleType::kPalette:
      break;
  }
  SLUICE_CHECK(false) << "a row without scales of its own";
  return 0;
}

void LoadCodeBlock(WeightFormat format, const WeightRow& row, int64_t k, int64_t index,
                   CodeBlock* out) {
  out->minimum = 0.0f;
  if (format == WeightFormat::kInt4) return LoadInt4(row, index, out);
  if (format == WeightFormat::kNvFp4) return LoadNvFp4(row, k, index, out);
  const int64_t per_block = BlockElements(format) / 32;
  SLUICE_CHECK(per_block > 0) << WeightFormatName(format) << " has no blocks";
  const uint8_t* block = row.data + index / per_block * BlockBytes(format);
  const int j = static_cast<int>(index % per_block);
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt4:
    case WeightFormat::kNvFp4:
    case WeightFormat::kBf16Palette:
      return;
    case WeightFormat::kQ8_0:
      LoadQ8_0(block, out);
      return;
    case WeightFormat::kQ4_0:
      LoadNibbles(block, false, false, out);
      return;
    case WeightFormat::kQ4_1:
      LoadNibbles(block, true, false, out);
      return;
    case WeightFormat::kQ5_0:
      LoadNibbles(block, false, true, out);
      return;
    case WeightFormat::kQ5_1:
      LoadNibbles(block, true, true, out);
      return;
    case WeightFormat::kQ4_K:
      LoadQ45_K(block, false, j, out);
      return;
    case WeightFormat::kQ5_K:
      LoadQ45_K(block, true, j, out);
      return;
    case WeightFormat::kQ6_K:
      LoadQ6_K(block, j, out);
      return;
  }
}

void DequantizeRow(WeightFormat format, const WeightRow& row, int64_t k, float* out) {
  switch (format) {
    case WeightFormat::kF32:
      std::memcpy(out, row.data, static_cast<size_t>(k) * sizeof(float));
      return;
    case WeightFormat::kF16:
      for (int64_t i = 0; i < k; ++i) out[i] = LoadF16(row.data + 2 * i);
      return;
    case WeightFormat::kBf16:
      for (int64_t i = 0; i < k; ++i) out[i] = Bf16ToFloat(Load16(row.data + 2 * i));
      return;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
      return DequantizeFp8(format, row, k, out);
    case WeightFormat::kNvFp4:
      return DequantizeNvFp4(row, k, out);
    case WeightFormat::kBf16Palette:
      return DequantizePalette(row, k, out);
    default:
      break;
  }
  const BlockLayout layout = BlockLayoutOf(format);
  CodeBlock block;
  for (int64_t b = 0; b < k / 32; ++b) {
    LoadCodeBlock(format, row, k, b, &block);
    for (int i = 0; i < 32; ++i) {
      const float value = static_cast<float>(block.codes[i] - layout.offset) * block.scales[i / 16];
      out[b * 32 + i] = layout.affine ? value + block.minimum : value;
    }
  }
}

}  // namespace sluice::kernels
