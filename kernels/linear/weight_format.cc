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
constexpr FormatInfo kFormats[] = {{"F32", 1, 4},      {"F16", 1, 2},     {"BF16", 1, 2},
                                   {"Q8_0", 32, 34},   {"Q4_0", 32, 18},  {"Q4_1", 32, 20},
                                   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},  {"Q4_K", 256, 144},
                                   {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};

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

}  // namespace

absl::string_view WeightFormatName(WeightFormat format) { return Info(format).name; }
int64_t BlockElements(WeightFormat format) { return Info(format).elements; }
int64_t BlockBytes(WeightFormat format) { return Info(format).bytes; }

int64_t RowBytes(WeightFormat format, int64_t k) {
  SLUICE_CHECK(k >= 0 && k % BlockElements(format) == 0)
      << "a row of " << k << " elements in " << Info(format).name;
  return k / BlockElements(format) * BlockBytes(format);
}

void LoadCodeBlock(WeightFormat format, const uint8_t* row, int64_t index, CodeBlock* out) {
  const int64_t per_block = BlockElements(format) / 32;
  const uint8_t* block = row + index / per_block * BlockBytes(format);
  const int j = static_cast<int>(index % per_block);
  out->minimum = 0.0f;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      SLUICE_CHECK(false) << WeightFormatName(format) << " has no blocks";
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

void DequantizeRow(WeightFormat format, const uint8_t* row, int64_t k, float* out) {
  if (format == WeightFormat::kF32) {
    std::memcpy(out, row, static_cast<size_t>(k) * sizeof(float));
    return;
  }
  if (format == WeightFormat::kF16) {
    for (int64_t i = 0; i < k; ++i) out[i] = LoadF16(row + 2 * i);
    return;
  }
  if (format == WeightFormat::kBf16) {
    for (int64_t i = 0; i < k; ++i) out[i] = Bf16ToFloat(Load16(row + 2 * i));
    return;
  }
  const BlockLayout layout = BlockLayoutOf(format);
  CodeBlock block;
  for (int64_t b = 0; b < k / 32; ++b) {
    LoadCodeBlock(format, row, b, &block);
    for (int i = 0; i < 32; ++i) {
      const float value = static_cast<float>(block.codes[i] - layout.offset) * block.scales[i / 16];
      out[b * 32 + i] = layout.affine ? value + block.minimum : value;
    }
  }
}

}  // namespace sluice::kernels
