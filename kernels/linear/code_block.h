// Parts of stored rows: 32 codes of a block format with their scale, misses of a palette. Internal
// to this folder.
#pragma once

#include <cstdint>

#include "kernels/linear/weight_format.h"

namespace sluice::kernels {

// 32 consecutive elements of a row. value[i] = (codes[i] - offset) * scales[i / 16] + minimum,
// where the minimum is only added for formats that have one. kNvFp4: the codes are e2m1 and the
// factor of the row is left out.
struct CodeBlock {
  uint8_t codes[32];
  float scales[2];  // equal but for kQ6_K and kNvFp4
  float minimum;
};

// Reads elements 32 * index .. 32 * index + 31 of a row of `k` elements of a block format.
void LoadCodeBlock(WeightFormat format, const WeightRow& row, int64_t k, int64_t index,
                   CodeBlock* out);

// Entry `index` of the misses of a row of kBf16Palette; an element >= k is no miss.
struct PaletteMiss {
  int64_t element = 0;
  uint16_t bf16 = 0;
};
PaletteMiss LoadPaletteMiss(const WeightRow& row, int64_t k, int64_t index);

}  // namespace sluice::kernels
