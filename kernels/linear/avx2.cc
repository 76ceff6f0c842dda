// Activations and the unquantised formats on AVX2. Weights of all three are widened to float32.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx2 {
namespace {

constexpr int kMaxTileRows = 4;

inline __m256 Abs(__m256 x) {
  return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}

inline float LargestLane(__m256 x) {
  __m128 v = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  v = _mm_max_ps(v, _mm_movehl_ps(v, v));
  v = _mm_max_ss(v, _mm_movehdup_ps(v));
  return _mm_cvtss_f32(v);
}

template <typename Code>
inline int SumOfCodes(const Code* codes, int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += codes[i];
  return sum;
}

// Stores 32 codes, given as 8 of int32 each, in the order of the block.
inline void StoreCodes(const __m256i* codes, int16_t* out) {
  for (int i = 0; i < 4; i += 2) {
    // The pack interleaves 128-bit lanes; the shuffles make the order of Int16Block.
    const __m256i packed = _mm256_packs_epi32(codes[i], codes[i + 1]);
    const __m256i words = _mm256_permute4x64_epi64(packed, 0xd8);
    const __m256i ordered = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
    std::memcpy(out + 8 * i, &ordered, sizeof(ordered));
  }
}
inline void StoreCodes(const __m256i* codes, int8_t* out) {
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                            _mm256_packs_epi32(codes[2], codes[3]));
  const __m256i ordered =
      _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  std::memcpy(out, &ordered, sizeof(ordered));
}

// Codes, scale and sums of 32 values; the same bits as in avx512.cc.
template <typename Block>
inline void QuantizeBlock(const float* x, Block* out) {
  constexpr float kLargestCode = Block::kLargestCode;
  __m256 v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
  const float amax = LargestLane(
      _mm256_max_ps(_mm256_max_ps(Abs(v[0]), Abs(v[1])), _mm256_max_ps(Abs(v[2]), Abs(v[3]))));
  const bool tiny = amax < kSmallestAmax;
  const __m256 inverse = _mm256_set1_ps(tiny ? 0.0f : kLargestCode / amax);
  __m256i codes[4];
  for (int i = 0; i < 4; ++i) codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  StoreCodes(codes, out->codes);
  const int first = SumOfCodes(out->codes, 16);
  const int sum = first + SumOfCodes(out->codes + 16, 16);
  out->scale = tiny ? 0.0f : amax / kLargestCode;
  out->scaled_sum = out->scale * static_cast<float>(sum);
  out->negated_sum = -sum;
  out->negated_first_sum = -first;
}

// Two consecutive elements of k for 8 of the 16 rows of a panel, widened to float32.
template <WeightFormat format>
inline void LoadPair(const uint8_t* p, int lanes, __m256* first, __m256* second) {
  if constexpr (format == WeightFormat::kF32) {
    *first = _mm256_loadu_ps(reinterpret_cast<const float*>(p + lanes * 32));
    *second = _mm256_loadu_ps(reinterpret_cast<const float*>(p + 64 + lanes * 32));
  } else if constexpr (format == WeightFormat::kF16) {
    *first = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + lanes * 16)));
    *second =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 32 + lanes * 16)));
  } else {
    const __m256i pair = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + lanes * 32));
    *first = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
    *second = _mm256_castsi256_ps(
        _mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
}

// y of `rows` rows of x and one panel. Each element has one accumulator that walks k in order.
template <WeightFormat format, int rows>
void Tile(const uint8_t* panel, Prefetcher prefetcher, int64_t pairs, const uint8_t* x,
          int64_t x_bytes, float (*out)[kPanelRows]) {
  constexpr int64_t kPairBytes = 2 * kPanelRows * (format == WeightFormat::kF32 ? 4 : 2);
  __m256 sums[rows][2];
  for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
  for (int64_t s = 0; s < pairs; ++s, panel += kPairBytes, x += 2 * sizeof(float)) {
    prefetcher.Step();
    __m256 first[2];
    __m256 second[2];
    for (int lanes = 0; lanes < 2; ++lanes)
      LoadPair<format>(panel, lanes, &first[lanes], &second[lanes]);
    for (int r = 0; r < rows; ++r) {
      const float* pair = reinterpret_cast<const float*>(x + r * x_bytes);
      for (int lanes = 0; lanes < 2; ++lanes) {
        sums[r][lanes] = _mm256_fmadd_ps(first[lanes], _mm256_set1_ps(pair[0]), sums[r][lanes]);
      }
      for (int lanes = 0; lanes < 2; ++lanes) {
        sums[r][lanes] = _mm256_fmadd_ps(second[lanes], _mm256_set1_ps(pair[1]), sums[r][lanes]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int lanes = 0; lanes < 2; ++lanes) _mm256_storeu_ps(out[r] + lanes * 8, sums[r][lanes]);
  }
}

using TileFunction = void (*)(const uint8_t* panel, Prefetcher prefetcher, int64_t pairs,
                              const uint8_t* x, int64_t x_bytes, float (*out)[kPanelRows]);

template <WeightFormat format>
void Run(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
         int64_t panel_end, float* y, int64_t y_stride) {
  static constexpr TileFunction kTiles[kMaxTileRows] = {Tile<format, 1>, Tile<format, 2>,
                                                        Tile<format, 3>, Tile<format, 4>};
  const int64_t x_bytes = PreparedRowBytes(ActivationKind::kFloat32, matrix.k);
  const int64_t pairs = (matrix.k + 1) / 2;
  const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const int64_t left = matrix.n - p * kPanelRows;
    const size_t outputs = static_cast<size_t>(left < kPanelRows ? left : kPanelRows);
    const uint8_t* panel = matrix.data + p * matrix.panel_bytes;
    const int64_t next_bytes = p + 1 < panel_end ? matrix.panel_bytes : 0;
    for (int64_t r = 0; r < rows; r += kMaxTileRows) {
      const int64_t tile = rows - r < kMaxTileRows ? rows - r : kMaxTileRows;
      float out[kMaxTileRows][kPanelRows];
      Prefetcher prefetcher;
      prefetcher.Plan(panel + matrix.panel_bytes, next_bytes, r / kMaxTileRows, tiles, pairs);
      kTiles[tile - 1](panel, prefetcher, pairs, prepared + r * x_bytes, x_bytes, out);
      for (int64_t i = 0; i < tile; ++i) {
        std::memcpy(y + (r + i) * y_stride + p * kPanelRows, out[i], outputs * sizeof(float));
      }
    }
  }
}

}  // namespace

void Prepare(ActivationKind kind, const float* x, int64_t rows, int64_t k, int64_t x_stride,
             uint8_t* prepared) {
  PrepareRows(kind, x, rows, k, x_stride, prepared,
              [](const float* from, auto* block) { QuantizeBlock(from, block); });
}

void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride) {
  ForwardFunction run = ForwardBlocks;
  if (matrix.format == WeightFormat::kF32) run = Run<WeightFormat::kF32>;
  if (matrix.format == WeightFormat::kF16) run = Run<WeightFormat::kF16>;
  if (matrix.format == WeightFormat::kBf16) run = Run<WeightFormat::kBf16>;
  if (matrix.format == WeightFormat::kFp8Block) run = ForwardWidened;
  if (matrix.format == WeightFormat::kFp8Channel) run = ForwardWidened;
  if (matrix.format == WeightFormat::kBf16Palette) run = ForwardWidened;
  run(matrix, prepared, rows, panel_begin, panel_end, y, y_stride);
}

}  // namespace sluice::kernels::avx2
