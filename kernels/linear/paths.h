// What each instruction-set file provides to linear.cc, and the packed layouts they share. Internal
// to this folder.
//
// Packed panels of the fast paths (16 rows, all of k, zero-padded):
//   F32   [k][16] f32      F16  [k][16] f16      BF16  [k/2][16][2] bf16
//   block formats: per 32 elements of k
//     f16 scale[groups][16], f16 minimum[16] if affine,
//     codes as "quads" of [16 rows][4 elements] bytes, 64 bytes each:
//       8 bits: 8 quads (code + 128);
//       4, 5, 6 bits: 4 nibble quads; quad j is the low nibbles of nibble quad j (j < 4) or the
//       high ones of j - 4; 5 bits: then 8 x u64, bit i of word j = bit 4 of byte i of quad j; 6
//       bits: then 2 quads, bits 2s and 2s + 1 of byte i of quad h = bits 4 and 5 of byte i of quad
//       4h + s.
// The reference path keeps [16][k] float32.
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"

namespace sluice::kernels {

constexpr int64_t kBlock = 32;

// Codes of activations reach from -kLargestCode to this.
constexpr float kLargestCode = 32767.0f;

// A block of activations whose largest magnitude is below this is quantised as zero:
// kLargestCode / amax stays finite.
constexpr float kSmallestAmax = 1e-30f;

// 32 quantised activations. An element of x is scale * code. Within each 4 elements the order is
// 0 2 1 3: the even and the odd bytes of a quad of weights, widened to 16 bits, meet a pair each.
struct Int16Block {
  int16_t codes[kBlock];
  float scale;
  float scaled_sum;           // scale * sum of the codes
  int32_t negated_sum;        // minus the sum of the codes
  int32_t negated_first_sum;  // minus the sum of codes 0..15
};
static_assert(sizeof(Int16Block) == 80);

// How a block format is packed.
struct BlockLayout {
  int bits = 0;         // 4, 5, 6 or 8; 0 for formats that are not blocks
  int groups = 1;       // scales per 32 elements
  bool affine = false;  // value = scale * code + minimum; else scale * (code - offset)
  int offset = 0;
  int64_t scale_bytes = 0;
  int64_t bytes = 0;  // of one block of 32 elements x 16 rows
};

// Constexpr so that kernels can be instantiated from it; internal linkage, see kernels/README.md.
static constexpr BlockLayout BlockLayoutOf(WeightFormat format) {
  BlockLayout layout;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return layout;
    case WeightFormat::kQ8_0:
      layout = {8, 1, false, 128, 0, 0};
      break;
    case WeightFormat::kQ4_0:
      layout = {4, 1, false, 8, 0, 0};
      break;
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ4_K:
      layout = {4, 1, true, 0, 0, 0};
      break;
    case WeightFormat::kQ5_0:
      layout = {5, 1, false, 16, 0, 0};
      break;
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ5_K:
      layout = {5, 1, true, 0, 0, 0};
      break;
    case WeightFormat::kQ6_K:
      layout = {6, 2, false, 32, 0, 0};
      break;
  }
  layout.scale_bytes = 32 * (layout.groups + (layout.affine ? 1 : 0));
  layout.bytes = layout.scale_bytes + kBlock * kPanelRows * layout.bits / 8;
  return layout;
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

}  // namespace

using PrepareFunction = void (*)(ActivationKind kind, const float* x, int64_t rows, int64_t k,
                                 int64_t x_stride, uint8_t* prepared);
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
}  // namespace avx2

namespace avx512 {
void Prepare(ActivationKind kind, const float* x, int64_t rows, int64_t k, int64_t x_stride,
             uint8_t* prepared);
void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride);
// The block formats.
void ForwardBlocks(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                   int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride);
}  // namespace avx512

}  // namespace sluice::kernels
