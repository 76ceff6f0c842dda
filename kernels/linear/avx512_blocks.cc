// Block formats on AVX-512 VNNI: int16 activations times codes widened to int16, float32 scales per
// 32 (or 16) elements of k.
#include <immintrin.h>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx512 {
namespace {

constexpr int kMaxTileRows = 8;

typedef int32_t UnalignedInt __attribute__((may_alias, aligned(1)));

// acc[lane] += the dot product of 2 codes of `weights` with the 2 activations at `x`, which serve
// all 16 lanes. Inline assembly: GCC 12 keeps the accumulators of _mm512_dpwssd_epi32 on the stack.
inline void DotPair(__m512i& acc, __m512i weights, const int16_t* x) {
  asm("vpdpwssd %[x]%{1to16%}, %[weights], %[acc]"
      : [acc] "+v"(acc)
      : [weights] "v"(weights), [x] "m"(*reinterpret_cast<const UnalignedInt*>(x)));
}

// The unsigned codes of quad 4 * half + j.
template <int bits>
inline __m512i LoadQuad(const uint8_t* codes, int half, int j) {
  if constexpr (bits == 8) {
    return _mm512_loadu_si512(codes + (half * 4 + j) * 64);
  } else {
    __m512i nibbles = _mm512_loadu_si512(codes + j * 64);
    if (half == 1) nibbles = _mm512_srli_epi16(nibbles, 4);
    __m512i quad = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
    const uint8_t* high = codes + 4 * 64;
    if constexpr (bits == 5) {
      const __mmask64 fifth = _load_mask64(
          reinterpret_cast<__mmask64*>(const_cast<uint8_t*>(high + (half * 4 + j) * 8)));
      quad = _mm512_mask_add_epi8(quad, fifth, quad, _mm512_set1_epi8(16));
    } else if constexpr (bits == 6) {
      const __m512i pairs = _mm512_loadu_si512(high + half * 64);
      const unsigned place = static_cast<unsigned>(2 * j);
      const __m512i shifted =
          place < 4 ? _mm512_slli_epi16(pairs, 4 - place) : _mm512_srli_epi16(pairs, place - 4);
      // (shifted & 0x30) | quad
      quad = _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi8(0x30), quad, 0xea);
    }
    return quad;
  }
}

// -offset * sum of the activations that the accumulator will cover.
template <int offset>
inline __m512i OffsetTerm(int32_t negated_sum) {
  constexpr int shift = __builtin_ctz(static_cast<unsigned>(offset));
  static_assert(offset == 1 << shift);
  return _mm512_slli_epi32(_mm512_set1_epi32(negated_sum), shift);
}

inline __m512 LoadHalves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Scales of the 16 rows, group `group`. e4m3 ones lack kE4m3AsF16.
template <PackedScale scale>
inline __m512 LoadScales(const uint8_t* p, int group) {
  const int at = group * static_cast<int>(kPanelRows);
  if constexpr (scale == PackedScale::kF16) {
    return LoadHalves(p + 2 * at);
  } else if constexpr (scale == PackedScale::kBf16) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 2 * at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
  } else {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + at));
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return _mm512_cvtph_ps(
        _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
}

// y of `rows` rows of x and one panel.
template <WeightFormat format, int rows>
void Tile(const uint8_t* panel, Prefetcher prefetcher, int64_t blocks, const uint8_t* x,
          int64_t x_bytes, float* y, int64_t y_stride, __mmask16 outputs) {
  constexpr BlockLayout layout = BlockLayoutOf(format);
  const uint8_t* const factors = panel;
  panel += layout.factor_bytes;
  const __m512i e2m1 =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Codes)));
  __m512 total[rows];
  for (int r = 0; r < rows; ++r) total[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b, panel += layout.bytes) {
    const uint8_t* x_block = x + b * static_cast<int64_t>(sizeof(Int16Block));
    const auto block_of = [&](int r) -> const Int16Block& {
      return *reinterpret_cast<const Int16Block*>(x_block + r * x_bytes);
    };
    prefetcher.Step();
    const uint8_t* codes = panel + layout.scale_bytes;
    __m512i acc[rows];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      if (half == 0 || layout.groups == 2) {
        for (int r = 0; r < rows; ++r) {
          if constexpr (layout.affine) {
            acc[r] = _mm512_setzero_si512();
          } else if constexpr (layout.groups == 1) {
            acc[r] = OffsetTerm<layout.offset>(block_of(r).negated_sum);
          } else {
            const int32_t first = block_of(r).negated_first_sum;
            acc[r] = OffsetTerm<layout.offset>(half == 0 ? first : block_of(r).negated_sum - first);
          }
        }
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __m512i quad = LoadQuad<layout.bits>(codes, half, j);
        if constexpr (layout.e2m1) quad = _mm512_shuffle_epi8(e2m1, quad);
        const __m512i even = _mm512_and_si512(quad, _mm512_set1_epi16(0xff));
        const __m512i odd = _mm512_srli_epi16(quad, 8);
        const int at = (half * 4 + j) * 4;
        for (int r = 0; r < rows; ++r) DotPair(acc[r], even, block_of(r).codes + at);
        for (int r = 0; r < rows; ++r) DotPair(acc[r], odd, block_of(r).codes + at + 2);
      }
      if (half == 1 || layout.groups == 2) {
        const __m512 scale = LoadScales<layout.scale>(panel, layout.groups == 2 ? half : 0);
        for (int r = 0; r < rows; ++r) {
          const __m512 product = _mm512_mul_ps(scale, _mm512_set1_ps(block_of(r).scale));
          total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), product, total[r]);
        }
      }
    }
    if constexpr (layout.affine) {
      const __m512 minimum = LoadHalves(panel + layout.groups * 32);
      for (int r = 0; r < rows; ++r) {
        total[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(block_of(r).scaled_sum), total[r]);
      }
    }
  }
  if constexpr (layout.e2m1) {
    const __m512 factor = _mm512_mul_ps(_mm512_loadu_ps(factors), _mm512_set1_ps(kE4m3AsF16 / 2));
    for (int r = 0; r < rows; ++r) total[r] = _mm512_mul_ps(total[r], factor);
  }
  for (int r = 0; r < rows; ++r) _mm512_mask_storeu_ps(y + r * y_stride, outputs, total[r]);
}

using TileFunction = void (*)(const uint8_t* panel, Prefetcher prefetcher, int64_t blocks,
                              const uint8_t* x, int64_t x_bytes, float* y, int64_t y_stride,
                              __mmask16 outputs);

template <WeightFormat format>
void Run(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
         int64_t panel_end, float* y, int64_t y_stride) {
  static constexpr TileFunction kTiles[kMaxTileRows] = {
      Tile<format, 1>, Tile<format, 2>, Tile<format, 3>, Tile<format, 4>,
      Tile<format, 5>, Tile<format, 6>, Tile<format, 7>, Tile<format, 8>};
  const int64_t x_bytes = PreparedRowBytes(ActivationKind::kInt16, matrix.k);
  const int64_t blocks = (matrix.k + kBlock - 1) / kBlock;
  const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const int64_t left = matrix.n - p * kPanelRows;
    const __mmask16 outputs = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
    const uint8_t* panel = matrix.data + p * matrix.panel_bytes;
    const int64_t next_bytes = p + 1 < panel_end ? matrix.panel_bytes : 0;
    for (int64_t r = 0; r < rows; r += kMaxTileRows) {
      const int64_t tile = rows - r < kMaxTileRows ? rows - r : kMaxTileRows;
      Prefetcher prefetcher;
      prefetcher.Plan(panel + matrix.panel_bytes, next_bytes, r / kMaxTileRows, tiles, blocks);
      kTiles[tile - 1](panel, prefetcher, blocks, prepared + r * x_bytes, x_bytes,
                       y + r * y_stride + p * kPanelRows, y_stride, outputs);
    }
  }
}

}  // namespace

void ForwardBlocks(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                   int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride) {
  ForwardFunction run = nullptr;
  switch (matrix.format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
      return;
    case WeightFormat::kQ8_0:
      run = Run<WeightFormat::kQ8_0>;
      break;
    case WeightFormat::kQ4_0:
      run = Run<WeightFormat::kQ4_0>;
      break;
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ4_K:
      run = Run<WeightFormat::kQ4_1>;
      break;
    case WeightFormat::kQ5_0:
      run = Run<WeightFormat::kQ5_0>;
      break;
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ5_K:
      run = Run<WeightFormat::kQ5_1>;
      break;
    case WeightFormat::kQ6_K:
      run = Run<WeightFormat::kQ6_K>;
      break;
    case WeightFormat::kInt4:
      run = Run<WeightFormat::kInt4>;
      break;
    case WeightFormat::kNvFp4:
      run = Run<WeightFormat::kNvFp4>;
      break;
  }
  run(matrix, prepared, rows, panel_begin, panel_end, y, y_stride);
}

}  // namespace sluice::kernels::avx512
