// Storage formats of weight matrices and their exact dequantisation.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace sluice::kernels {

// How the elements of one matrix row are stored. The Q formats are GGUF blocks along the row
// (little-endian, f16 block scales). The scales of FP8, INT4 and NVFP4 and the palette of
// kBf16Palette are a tensor of their own.
enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,        // 32 x int8, scale
  kQ4_0,        // 32 x 4 bits, scale, offset 8
  kQ4_1,        // 32 x 4 bits, scale, minimum
  kQ5_0,        // 32 x 5 bits, scale, offset 16
  kQ5_1,        // 32 x 5 bits, scale, minimum
  kQ4_K,        // 256 x 4 bits, 6-bit scales and minima per 32
  kQ5_K,        // 256 x 5 bits, 6-bit scales and minima per 32
  kQ6_K,        // 256 x 6 bits, int8 scales per 16, offset 32
  kFp8Block,    // e4m3, a scale per 128
  kFp8Channel,  // e4m3, a scale per row
  kInt4,        // 4 bits, low nibble first, offset 8, a bf16 scale per 32
  kNvFp4,       // e2m1, low nibble first, an e4m3 scale per 16 and a factor per row
  // BF16 without loss: k bytes of sign and mantissa, k nibbles (low first) that name one of 16
  // exponents, then PaletteMisses(k) entries {u32 element, u16 bf16} for other exponents, the
  // unused ones at the end with element 0xffffffff.
  kBf16Palette,
};

constexpr WeightFormat kAllWeightFormats[] = {
    WeightFormat::kF32,        WeightFormat::kF16,  WeightFormat::kBf16,
    WeightFormat::kQ8_0,       WeightFormat::kQ4_0, WeightFormat::kQ4_1,
    WeightFormat::kQ5_0,       WeightFormat::kQ5_1, WeightFormat::kQ4_K,
    WeightFormat::kQ5_K,       WeightFormat::kQ6_K, WeightFormat::kFp8Block,
    WeightFormat::kFp8Channel, WeightFormat::kInt4, WeightFormat::kNvFp4,
    WeightFormat::kBf16Palette};

// How scales in a tensor of their own are stored.
enum class ScaleType : uint8_t { kNone, kF32, kBf16, kE4m3, kPalette };

// Where one row of a matrix lies; no alignment needed.
struct WeightRow {
  const uint8_t* data = nullptr;  // RowBytes(format, k) bytes
  // Formats with scales of their own: RowScales(format, k) of them. kFp8Block and kFp8Channel take
  // kF32 and kBf16, kInt4 takes kBf16, kNvFp4 takes kE4m3, kBf16Palette 16 bytes of kPalette.
  const uint8_t* scales = nullptr;
  ScaleType scale_type = ScaleType::kNone;
  float factor = 1.0f;  // kNvFp4
};

// "F32", "Q4_1", "NVFP4", ...
absl::string_view WeightFormatName(WeightFormat format);

// Elements and bytes of one block; 1 element for the unquantised formats. kBf16Palette has no
// blocks: 1 element of no size.
int64_t BlockElements(WeightFormat format);
int64_t BlockBytes(WeightFormat format);

// Bytes of a row of `k` elements. Needs: k >= 0 and a multiple of BlockElements(format).
int64_t RowBytes(WeightFormat format, int64_t k);

// Elements of a row of kBf16Palette that may have an exponent outside the palette.
constexpr int64_t PaletteMisses(int64_t k) { return 2 + k / 512; }
constexpr int64_t kPaletteMissBytes = 6;
constexpr uint32_t kNoPaletteMiss = 0xffffffff;

// Scales of their own that a row of `k` elements has; 0 for formats without.
int64_t RowScales(WeightFormat format, int64_t k);
// Scale `index` of a row that has scales of its own.
float LoadScale(const WeightRow& row, int64_t index);

// Writes the float32 values of one row, in the element order of the file: exact, or where a scale
// is float32 the rounded product of code and scale.
// Shapes: out: k floats.
// Needs: k a multiple of BlockElements(format). Any bytes are accepted; infinite scales give
// infinities or NaN. Threads: safe. Cost: about 1 ns an element.
void DequantizeRow(WeightFormat format, const WeightRow& row, int64_t k, float* out);

}  // namespace sluice::kernels
