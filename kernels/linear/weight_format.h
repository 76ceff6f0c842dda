// Storage formats of weight matrices and their exact dequantisation.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace sluice::kernels {

// How the elements of one matrix row are stored. The quantised formats are GGUF blocks along the
// row (little-endian, f16 block scales). Formats whose scales live in a tensor of their own join
// this list with their packing.
enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,  // 32 x int8, scale
  kQ4_0,  // 32 x 4 bits, scale, offset 8
  kQ4_1,  // 32 x 4 bits, scale, minimum
  kQ5_0,  // 32 x 5 bits, scale, offset 16
  kQ5_1,  // 32 x 5 bits, scale, minimum
  kQ4_K,  // 256 x 4 bits, 6-bit scales and minima per 32
  kQ5_K,  // 256 x 5 bits, 6-bit scales and minima per 32
  kQ6_K,  // 256 x 6 bits, int8 scales per 16, offset 32
};

constexpr WeightFormat kAllWeightFormats[] = {
    WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kBf16, WeightFormat::kQ8_0,
    WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ5_0, WeightFormat::kQ5_1,
    WeightFormat::kQ4_K, WeightFormat::kQ5_K, WeightFormat::kQ6_K};

// "F32", "Q4_1", ...: the names GGUF uses.
absl::string_view WeightFormatName(WeightFormat format);

// Elements and bytes of one block; 1 element for the unquantised formats.
int64_t BlockElements(WeightFormat format);
int64_t BlockBytes(WeightFormat format);

// Bytes of a row of `k` elements. Needs: k >= 0 and a multiple of BlockElements(format).
int64_t RowBytes(WeightFormat format, int64_t k);

// Writes the exact float32 values of one row, in the element order of the file.
// Shapes: row: RowBytes(format, k) bytes, no alignment needed; out: k floats.
// Needs: k a multiple of BlockElements(format). Any bytes are accepted; infinite scales give
// infinities or NaN. Threads: safe. Cost: about 1 ns an element.
void DequantizeRow(WeightFormat format, const uint8_t* row, int64_t k, float* out);

}  // namespace sluice::kernels
