// Rows of float32 to the quantised layouts of published checkpoints.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::model {

inline constexpr int64_t kInt4Group = 32;
inline constexpr int64_t kFp8Block = 128;

// INT4 pack-quantized: per 32 elements the scale is amax / 7.5 in bf16 and a code rint(x / scale)
// within -8..7, stored plus 8, the first of a byte in its low nibble. A group of zeros has scale 1.
// Shapes: x [k]; codes [k / 2]; scales [k / 32] bf16. Needs: k a multiple of 32.
void EncodeInt4Row(const float* x, int64_t k, uint8_t* codes, uint16_t* scales);

// FP8: one block of up to 128 x 128 gets the scale amax / 448, returned, and e4m3 codes of x /
// scale. A block of zeros has scale 1. Shapes: x, codes [rows][columns], rows `stride` elements
// apart.
float EncodeFp8Block(const float* x, int64_t rows, int64_t columns, int64_t stride, uint8_t* codes);

// The 16 exponents that occur most, the most frequent first; `histogram` counts each.
std::array<uint8_t, 16> ChoosePalette(const std::array<uint64_t, 256>& histogram);

// BF16 without loss: a row of kernels::WeightFormat::kBf16Palette. False when more elements than
// the row may have miss the palette. Shapes: x [k] bf16; out: RowBytes(kBf16Palette, k).
bool EncodePaletteRow(const uint16_t* x, int64_t k, const std::array<uint8_t, 16>& palette,
                      uint8_t* out);

// Nearest bf16 of each element.
void EncodeBf16Row(const float* x, int64_t k, uint16_t* out);

}  // namespace sluice::model
