// Block formats on AVX2: the arithmetic of avx512_blocks.cc with 8 lanes; the results have the same
// bits.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx2 {
namespace {

constexpr int kMaxTileRows = 4;

inline __m256i Broadcast(const int16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

inline __m256i Load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// 0x10 in every byte whose bit is set in the 32 bits at `p`.
inline __m256i FifthBits(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i select = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, select), select);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

// The unsigned codes of eight of the sixteen rows of quad 4 * half + j.
template <int bits>
inline __m256i LoadQuad(const uint8_t* codes, int lanes, int half, int j) {
  if constexpr (bits == 8) {
    return Load(codes + (half * 4 + j) * 64 + lanes * 32);
  } else {
    __m256i nibbles = Load(codes + j * 64 + lanes * 32);
    if (half == 1) nibbles = _mm256_srli_epi16(nibbles, 4);
    __m256i quad = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
    const uint8_t* high = codes + 4 * 64;
    if constexpr (bits == 5) {
      quad = _mm256_or_si256(quad, FifthBits(high + (half * 4 + j) * 8 + lanes * 4));
    } else if constexpr (bits == 6) {
      const __m256i pairs = Load(high + half * 64 + lanes * 32);
      const __m256i shifted =
          j < 2 ? _mm256_slli_epi16(pairs, 4 - 2 * j) : _mm256_srli_epi16(pairs, 2 * j - 4);
      quad = _mm256_or_si256(quad, _mm256_and_si256(shifted, _mm256_set1_epi8(0x30)));
    }
    return quad;
  }
}

// sum += the dot product of 2 codes of each lane with the 2 activations at `x`. The empty assembly
// keeps the order of additions: GCC would turn them into a tree whose leaves it stores.
inline void DotPair(__m256i& sum, __m256i weights, const int16_t* x) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, Broadcast(x)));
  asm("" : "+x"(sum));
}

inline __m256 LoadHalves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Scales of 8 rows: group `group`, rows 8 * lanes .. 8 * lanes + 7. e4m3 ones lack kE4m3AsF16.
template <PackedScale scale>
inline __m256 LoadScales(const uint8_t* p, int group, int lanes) {
  const int at = group * static_cast<int>(kPanelRows) + lanes * 8;
  if constexpr (scale == PackedScale::kF16) {
    return LoadHalves(p + 2 * at);
  } else if constexpr (scale == PackedScale::kBf16) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
  } else {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + at));
    const __m128i shifted = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
    return _mm256_cvtph_ps(_mm_and_si128(shifted, _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
}

// What the integer sum of a row starts from: -offset times the sum of its activations.
template <WeightFormat format>
inline int32_t OffsetTerm(const Int16Block& x, int half) {
  constexpr BlockLayout layout = BlockLayoutOf(format);
  if constexpr (layout.affine) return 0;
  if constexpr (layout.groups == 1) return x.negated_sum * layout.offset;
  return (half == 0 ? x.negated_first_sum : x.negated_sum - x.negated_first_sum) * layout.offset;
}

// y of `rows` rows of x and lanes 8 * lanes .. 8 * lanes + 7 of one panel.
template <WeightFormat format, int rows>
inline void HalfTile(const uint8_t* panel, int lanes, Prefetcher prefetcher, int64_t blocks,
                     const uint8_t* x, int64_t x_bytes, float (*out)[kPanelRows]) {
  constexpr BlockLayout layout = BlockLayoutOf(format);
  const uint8_t* const factors = panel;
  panel += layout.factor_bytes;
  const __m256i e2m1 =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Codes)));
  __m256 total[rows];
  for (int r = 0; r < rows; ++r) total[r] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b, panel += layout.bytes) {
    const uint8_t* x_block = x + b * static_cast<int64_t>(sizeof(Int16Block));
    const auto block_of = [&](int r) -> const Int16Block& {
      return *reinterpret_cast<const Int16Block*>(x_block + r * x_bytes);
    };
    prefetcher.Step();
    const uint8_t* codes = panel + layout.scale_bytes;
    __m256i acc[rows];
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
      const int half = q / 4;
      if (q == 0 || (layout.groups == 2 && q == 4)) {
        for (int r = 0; r < rows; ++r) {
          acc[r] = _mm256_set1_epi32(OffsetTerm<format>(block_of(r), half));
        }
      }
      __m256i quad = LoadQuad<layout.bits>(codes, lanes, half, q % 4);
      if constexpr (layout.e2m1) quad = _mm256_shuffle_epi8(e2m1, quad);
      const __m256i even = _mm256_and_si256(quad, _mm256_set1_epi16(0xff));
      const __m256i odd = _mm256_srli_epi16(quad, 8);
      for (int r = 0; r < rows; ++r) DotPair(acc[r], even, block_of(r).codes + q * 4);
      for (int r = 0; r < rows; ++r) DotPair(acc[r], odd, block_of(r).codes + q * 4 + 2);
      if (q == 7 || (layout.groups == 2 && q == 3)) {
        const __m256 scale = LoadScales<layout.scale>(panel, layout.groups == 2 ? half : 0, lanes);
        for (int r = 0; r < rows; ++r) {
          const __m256 product = _mm256_mul_ps(scale, _mm256_set1_ps(block_of(r).scale));
          total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r]), product, total[r]);
        }
      }
    }
    if constexpr (layout.affine) {
      const __m256 minimum = LoadHalves(panel + layout.groups * 32 + lanes * 16);
      for (int r = 0; r < rows; ++r) {
        total[r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(block_of(r).scaled_sum), total[r]);
      }
    }
  }
  if constexpr (layout.e2m1) {
    const __m256 factor =
        _mm256_mul_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(factors) + lanes * 8),
                      _mm256_set1_ps(kE4m3AsF16 / 2));
    for (int r = 0; r < rows; ++r) total[r] = _mm256_mul_ps(total[r], factor);
  }
  for (int r = 0; r < rows; ++r) _mm256_storeu_ps(out[r] + lanes * 8, total[r]);
}

using TileFunction = void (*)(const uint8_t* panel, int lanes, Prefetcher prefetcher,
                              int64_t blocks, const uint8_t* x, int64_t x_bytes,
                              float (*out)[kPanelRows]);

template <WeightFormat format>
void Run(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
         int64_t panel_end, float* y, int64_t y_stride) {
  static constexpr TileFunction kTiles[kMaxTileRows] = {HalfTile<format, 1>, HalfTile<format, 2>,
                                                        HalfTile<format, 3>, HalfTile<format, 4>};
  const int64_t x_bytes = PreparedRowBytes(ActivationKind::kInt16, matrix.k);
  const int64_t blocks = (matrix.k + kBlock - 1) / kBlock;
  const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const int64_t left = matrix.n - p * kPanelRows;
    const size_t outputs = static_cast<size_t>(left < kPanelRows ? left : kPanelRows);
    const uint8_t* panel = matrix.data + p * matrix.panel_bytes;
    const int64_t next_bytes = p + 1 < panel_end ? matrix.panel_bytes : 0;
    for (int64_t r = 0; r < rows; r += kMaxTileRows) {
      const int64_t tile = rows - r < kMaxTileRows ? rows - r : kMaxTileRows;
      float out[kMaxTileRows][kPanelRows];
      for (int lanes = 0; lanes < 2; ++lanes) {
        Prefetcher prefetcher;
        prefetcher.Plan(panel + matrix.panel_bytes, next_bytes, r / kMaxTileRows * 2 + lanes,
                        2 * tiles, blocks);
        kTiles[tile - 1](panel, lanes, prefetcher, blocks, prepared + r * x_bytes, x_bytes, out);
      }
      for (int64_t i = 0; i < tile; ++i) {
        std::memcpy(y + (r + i) * y_stride + p * kPanelRows, out[i], outputs * sizeof(float));
      }
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

}  // namespace sluice::kernels::avx2
