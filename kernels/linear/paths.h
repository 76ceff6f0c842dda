// What each instruction-set file provides to linear.cc, and the packed layouts they share. Internal
// to this folder.
//
// Packed panels of the fast paths (16 rows, all of k, zero-padded):
//   F32   [k][16] f32      F16  [k][16] f16      BF16  [k/2][16][2] bf16
//   FP8: per 128 elements of k, or per row: f32 scale[16], then e4m3 codes [elements][16], elements
//     rounded up to 4
//   kBf16Palette: PaletteHead, misses [16 * PaletteMisses + 1] sorted by step, then steps of 4
//     elements of k: sign and mantissa bytes [4 groups of 4 rows][2 pairs of k][4 rows][2], 32
//     bytes of exponent nibbles: byte i has those of bytes i and i + 32
//   block formats: f32 factor[16] if there is one, then per 32 elements of k
//     scale[groups][16] (f16, bf16 or e4m3), f16 minimum[16] if affine,
//     codes as "quads" of [16 rows][4 elements] bytes, 64 bytes each:
//       8 bits: 8 quads (code + 128);
//       4, 5, 6 bits: 4 nibble quads; quad j is the low nibbles of nibble quad j (j < 4) or the
//       high ones of j - 4; 5 bits: then 8 x u64, bit i of word j = bit 4 of byte i of quad j; 6
//       bits: then 2 quads, bits 2s and 2s + 1 of byte i of quad h = bits 4 and 5 of byte i of quad
//       4h + s.
// The reference path keeps [16][k] float32.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/linear/linear.h"

namespace sluice::kernels {

constexpr int64_t kBlock = 32;

// A block of activations whose largest magnitude is below this is quantised as zero:
// kLargestCode / amax stays finite.
constexpr float kSmallestAmax = 1e-30f;

// 32 quantised activations. An element of x is scale * code. Within each 4 elements the order is
// 0 2 1 3: the even and the odd bytes of a quad of weights, widened to 16 bits, meet a pair each.
struct Int16Block {
  static constexpr float kLargestCode = 32767.0f;  // codes reach from minus this to this
  int16_t codes[kBlock];
  float scale;
  float scaled_sum;           // scale * sum of the codes
  int32_t negated_sum;        // minus the sum of the codes
  int32_t negated_first_sum;  // minus the sum of codes 0..15
};
static_assert(sizeof(Int16Block) == 80);

// The same with 8 bits, in the order of k: a quad of weights meets 4 codes.
struct Int8Block {
  static constexpr float kLargestCode = 127.0f;
  int8_t codes[kBlock];
  float scale;
  float scaled_sum;
  int32_t negated_sum;
  int32_t negated_first_sum;
};
static_assert(sizeof(Int8Block) == 48);

// What e4m3 codes lack when their bits are read as f16: kernels multiply by it.
constexpr float kE4m3AsF16 = 256.0f;

// e2m1 codes as integers: twice the value, plus kE2m1Offset.
constexpr int kE2m1Offset = 16;
constexpr uint8_t kE2m1Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

// How the scales of a block format are packed.
enum class PackedScale : uint8_t { kF16, kBf16, kE4m3 };

// How a block format is packed.
struct BlockLayout {
  int bits = 0;         // 4, 5, 6 or 8; 0 for formats that are not blocks
  int groups = 1;       // scales per 32 elements
  bool affine = false;  // value = scale * code + minimum; else scale * (code - offset)
  int offset = 0;
  PackedScale scale = PackedScale::kF16;
  bool e2m1 = false;  // codes go through kE2m1Codes; a factor per row in front
  int64_t scale_bytes = 0;
  int64_t bytes = 0;  // of one block of 32 elements x 16 rows
  int64_t factor_bytes = 0;
};

// Constexpr so that kernels can be instantiated from it; internal linkage, see kernels/README.md.
static constexpr BlockLayout BlockLayoutOf(WeightFormat format) {
  BlockLayout layout;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
    case WeightFormat::kBf16Palette:
      return layout;
    case WeightFormat::kQ8_0:
      layout = {8, 1, false, 128};
      break;
    case WeightFormat::kQ4_0:
      layout = {4, 1, false, 8};
      break;
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ4_K:
      layout = {4, 1, true, 0};
      break;
    case WeightFormat::kQ5_0:
      layout = {5, 1, false, 16};
      break;
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ5_K:
      layout = {5, 1, true, 0};
      break;
    case WeightFormat::kQ6_K:
      layout = {6, 2, false, 32};
      break;
    case WeightFormat::kInt4:
      layout = {4, 1, false, 8, PackedScale::kBf16};
      break;
    case WeightFormat::kNvFp4:
      layout = {4, 2, false, kE2m1Offset, PackedScale::kE4m3, true};
      break;
  }
  const int64_t scale_size = layout.scale == PackedScale::kE4m3 ? 1 : 2;
  layout.scale_bytes = scale_size * kPanelRows * (layout.groups + (layout.affine ? 1 : 0));
  layout.factor_bytes = layout.e2m1 ? 4 * kPanelRows : 0;
  layout.bytes = layout.scale_bytes + kBlock * kPanelRows * layout.bits / 8;
  return layout;
}

// Elements of k that share a scale; all of them in formats without.
static constexpr int64_t Fp8GroupOf(WeightFormat format, int64_t k) {
  return format == WeightFormat::kFp8Block ? 128 : k;
}

// Bytes of a panel of an FP8 format.
static constexpr int64_t Fp8PanelBytes(WeightFormat format, int64_t k) {
  const int64_t group = Fp8GroupOf(format, k);
  return (k + group - 1) / group * 4 * kPanelRows + (k + 3) / 4 * 4 * kPanelRows;
}

// What precedes the misses of a panel of kBf16Palette: the high and the low byte of a bf16 whose
// exponent has index i, without sign and mantissa.
struct PaletteHead {
  uint8_t high[16];
  uint8_t low[16];
  uint8_t padding[32];
};
static_assert(sizeof(PaletteHead) == 64);

// An element of a panel whose exponent is not in the palette: byte `byte` of step `step`.
struct PackedMiss {
  uint32_t step;  // kNoPaletteMiss: the end of the list
  uint16_t byte;  // of the sign and mantissa bytes of the step
  uint16_t bf16;
};
static_assert(sizeof(PackedMiss) == 8);

constexpr int64_t kPaletteStepElements = 4;  // of k
constexpr int64_t kPaletteStepBytes = 96;

// Bytes of head and misses.
static constexpr int64_t PaletteHeadBytes(int64_t k) {
  const int64_t misses = kPanelRows * PaletteMisses(k) + 1;
  return static_cast<int64_t>(sizeof(PaletteHead)) + (misses * 8 + 63) / 64 * 64;
}
static constexpr int64_t PalettePanelBytes(int64_t k) {
  return PaletteHeadBytes(k) + (k + 3) / 4 * kPaletteStepBytes;
}

// The byte of a step that holds element `i` (0..3) of a row of the panel.
static constexpr int PaletteByte(int row, int i) {
  return row / 4 * 16 + i / 2 * 8 + row % 4 * 2 + i % 2;
}

namespace {  // instruction-set files use it: internal linkage, see kernels/README.md

// Brings the next panels into the cache while the current ones are multiplied. Without it only the
// first tile of rows of a panel waits for memory, with nothing to do meanwhile.
struct Prefetcher {
  const uint8_t* next = nullptr;
  int64_t bytes_per_step = 0;

  // The share of tile `tile` out of `tiles`, spread over its steps; a few bytes past the end do no
  // harm.
  void Plan(const uint8_t* begin, int64_t bytes, int64_t tile, int64_t tiles, int64_t steps) {
    bytes_per_step = (bytes + tiles * steps - 1) / (tiles * steps);
    next = begin + tile * steps * bytes_per_step;
  }
  void Step() {
    for (int64_t i = 0; i < bytes_per_step; i += 64) __builtin_prefetch(next + i, 0, 2);
    next += bytes_per_step;
  }
};

// One row as blocks. `quantize(x, block)` makes a block of the 32 values at `x`.
template <typename Block, typename Quantize>
void PrepareBlocks(const float* x, int64_t k, uint8_t* prepared, Quantize quantize) {
  Block* blocks = reinterpret_cast<Block*>(prepared);
  const int64_t whole = k / kBlock;
  for (int64_t b = 0; b < whole; ++b) quantize(x + b * kBlock, blocks + b);
  if (k % kBlock == 0) return;
  float tail[kBlock] = {};
  std::memcpy(tail, x + whole * kBlock, static_cast<size_t>(k % kBlock) * sizeof(float));
  quantize(tail, blocks + whole);
}

// Prepare of the vector paths.
template <typename Quantize>
void PrepareRows(ActivationKind kind, const float* x, int64_t rows, int64_t k, int64_t x_stride,
                 uint8_t* prepared, Quantize quantize) {
  const int64_t row_bytes = PreparedRowBytes(kind, k);
  const size_t bytes = static_cast<size_t>(k) * sizeof(float);
  for (int64_t r = 0; r < rows; ++r, x += x_stride, prepared += row_bytes) {
    switch (kind) {
      case ActivationKind::kFloat32:
        std::memcpy(prepared, x, bytes);
        // Kernels read k in pairs.
        std::memset(prepared + bytes, 0, static_cast<size_t>(row_bytes) - bytes);
        break;
      case ActivationKind::kInt16:
        PrepareBlocks<Int16Block>(x, k, prepared, quantize);
        break;
      case ActivationKind::kInt8:
        PrepareBlocks<Int8Block>(x, k, prepared, quantize);
        break;
    }
  }
}

}  // namespace

using ForwardFunction = void (*)(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                                 int64_t panel_begin, int64_t panel_end, float* y,
                                 int64_t y_stride);

namespace reference {
void Prepare(ActivationKind kind, const float* x, int64_t rows, int64_t k, int64_t x_stride,
             uint8_t* prepared);
void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride);
}  // namespace reference

namespace avx2 {
void Prepare(ActivationKind kind, const float* x, int64_t rows, int64_t k, int64_t x_stride,
             uint8_t* prepared);
void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride);
// The block formats.
void ForwardBlocks(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                   int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride);
// kFp8Block, kFp8Channel and kBf16Palette; the bits of the latter are those of kBf16.
void ForwardWidened(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                    int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride);
}  // namespace avx2

namespace avx512 {
void Prepare(ActivationKind kind, const float* x, int64_t rows, int64_t k, int64_t x_stride,
             uint8_t* prepared);
void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride);
// The block formats.
void ForwardBlocks(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                   int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride);
// kFp8Block, kFp8Channel and kBf16Palette; the bits of the latter are those of kBf16.
void ForwardWidened(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                    int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride);
}  // namespace avx512

}  // namespace sluice::kernels
