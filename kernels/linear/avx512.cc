// Activations and the unquantised formats on AVX-512.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx512 {
namespace {

constexpr int kMaxTileRows = 8;

// Stores 16 codes in the order of Int16Block.
inline void StoreCodes(__m512i codes, int16_t* out) {
  const __m256i words = _mm512_cvtsepi32_epi16(codes);
  const __m256i ordered = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), ordered);
}
inline void StoreCodes(__m512i codes, int8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtsepi32_epi8(codes));
}

// Codes, scale and sums of 32 values.
template <typename Block>
inline void QuantizeBlock(const float* x, Block* out) {
  constexpr float kLargestCode = Block::kLargestCode;
  const __m512 low = _mm512_loadu_ps(x);
  const __m512 high = _mm512_loadu_ps(x + 16);
  const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
  const bool tiny = amax < kSmallestAmax;
  const float scale = tiny ? 0.0f : amax / kLargestCode;
  const __m512 inverse = _mm512_set1_ps(tiny ? 0.0f : kLargestCode / amax);
  const __m512i low_codes = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
  const __m512i high_codes = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
  StoreCodes(low_codes, out->codes);
  StoreCodes(high_codes, out->codes + 16);
  const int first = _mm512_reduce_add_epi32(low_codes);
  const int sum = first + _mm512_reduce_add_epi32(high_codes);
  out->scale = scale;
  out->scaled_sum = scale * static_cast<float>(sum);
  out->negated_sum = -sum;
  out->negated_first_sum = -first;
}

// One step of k: [16] f32, [16] f16 or [16][2] bf16 of one panel.
template <WeightFormat format>
struct Step;

template <>
struct Step<WeightFormat::kF32> {
  static constexpr int64_t kBytes = 64;
  static constexpr int64_t kXBytes = 4;
  static __m512 Load(const uint8_t* p) { return _mm512_loadu_ps(p); }
  static __m512 LoadX(const uint8_t* x) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(x));
  }
  static __m512 Add(__m512 sum, __m512 w, __m512 x) { return _mm512_fmadd_ps(w, x, sum); }
};

template <>
struct Step<WeightFormat::kF16> : Step<WeightFormat::kF32> {
  static constexpr int64_t kBytes = 32;
  static __m512 Load(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};

// Pairs of bf16 are widened to float32: vdpbf16ps would need x in bf16, whose error (2^-9) moves
// values over the rounding steps of an FP8 cache and costs more than the cache's own rounding may.
template <>
struct Step<WeightFormat::kBf16> {
  static constexpr int64_t kBytes = 64;
  static constexpr int64_t kXBytes = 8;
  struct Pair {
    __m512 first;
    __m512 second;
  };
  static Pair Load(const uint8_t* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    const __m512i odd = _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), _mm512_castsi512_ps(odd)};
  }
  static Pair LoadX(const uint8_t* x) {
    const float* pair = reinterpret_cast<const float*>(x);
    return {_mm512_set1_ps(pair[0]), _mm512_set1_ps(pair[1])};
  }
  static __m512 Add(__m512 sum, const Pair& w, const Pair& x) {
    return _mm512_fmadd_ps(w.second, x.second, _mm512_fmadd_ps(w.first, x.first, sum));
  }
};

struct TileArguments {
  const uint8_t* panel;
  int64_t panel_bytes;
  int64_t steps;
  const uint8_t* x;
  int64_t x_bytes;
  float* y;
  int64_t y_stride;
  __mmask16 outputs;  // of the last panel
  Prefetcher prefetcher;
};

// y of `rows` rows of x and `panels` panels. Each element has one accumulator that walks k in
// order.
template <WeightFormat format, int rows, int panels>
void Tile(const TileArguments& t) {
  using S = Step<format>;
  __m512 sums[rows][panels];
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) sums[r][p] = _mm512_setzero_ps();
  }
  Prefetcher prefetcher = t.prefetcher;
  const uint8_t* w = t.panel;
  const uint8_t* x = t.x;
  for (int64_t s = 0; s < t.steps; ++s, w += S::kBytes, x += S::kXBytes) {
    decltype(S::Load(w)) weights[panels];
    for (int p = 0; p < panels; ++p) weights[p] = S::Load(w + p * t.panel_bytes);
    prefetcher.Step();
    for (int r = 0; r < rows; ++r) {
      const auto broadcast = S::LoadX(x + r * t.x_bytes);
      for (int p = 0; p < panels; ++p) sums[r][p] = S::Add(sums[r][p], weights[p], broadcast);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) {
      const __mmask16 outputs = p == panels - 1 ? t.outputs : static_cast<__mmask16>(0xffff);
      _mm512_mask_storeu_ps(t.y + r * t.y_stride + p * kPanelRows, outputs, sums[r][p]);
    }
  }
}

// More panels at once hide latency when rows are few; 16 accumulators leave room for weights.
template <WeightFormat format, int rows>
void TilePanels(TileArguments t, int panels) {
  if (panels == 4) {
    if constexpr (rows <= 4) Tile<format, rows, 4>(t);
  } else if (panels == 2) {
    Tile<format, rows, 2>(t);
  } else {
    Tile<format, rows, 1>(t);
  }
}

using TileFunction = void (*)(TileArguments t, int panels);

template <WeightFormat format>
void Run(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
         int64_t panel_end, float* y, int64_t y_stride) {
  static constexpr TileFunction kTiles[kMaxTileRows] = {
      TilePanels<format, 1>, TilePanels<format, 2>, TilePanels<format, 3>, TilePanels<format, 4>,
      TilePanels<format, 5>, TilePanels<format, 6>, TilePanels<format, 7>, TilePanels<format, 8>};
  const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  const int64_t widest = rows <= 4 ? 4 : 2;
  TileArguments t;
  t.panel_bytes = matrix.panel_bytes;
  t.steps = matrix.panel_bytes / Step<format>::kBytes;
  t.x_bytes = PreparedRowBytes(matrix.activations, matrix.k);
  t.y_stride = y_stride;
  int64_t panels = 0;
  for (int64_t p = panel_begin; p < panel_end; p += panels) {
    panels = widest;
    while (panels > panel_end - p) panels /= 2;
    const int64_t left = matrix.n - (p + panels - 1) * kPanelRows;
    t.outputs = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
    t.panel = matrix.data + p * matrix.panel_bytes;
    const int64_t next_bytes = p + 2 * panels <= panel_end ? panels * t.panel_bytes : 0;
    for (int64_t r = 0; r < rows; r += kMaxTileRows) {
      const int64_t tile = rows - r < kMaxTileRows ? rows - r : kMaxTileRows;
      t.prefetcher.Plan(t.panel + panels * t.panel_bytes, next_bytes, r / kMaxTileRows, tiles,
                        t.steps);
      t.x = prepared + r * t.x_bytes;
      t.y = y + r * y_stride + p * kPanelRows;
      kTiles[tile - 1](t, static_cast<int>(panels));
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

}  // namespace sluice::kernels::avx512
