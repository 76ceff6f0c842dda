// FP8 weights on AVX-512: the arithmetic of avx2_fp8.cc with 16 lanes; the results have the same
// bits.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx512 {
namespace {

constexpr int kMaxTileRows = 8;

struct TileArguments {
  const uint8_t* panel;
  int64_t panel_bytes;
  int64_t k;
  int64_t group;  // elements of k that share a scale
  const uint8_t* x;
  int64_t x_bytes;
  float* y;
  int64_t y_stride;
  __mmask16 outputs;  // of the last panel
  Prefetcher prefetcher;
};

// One element of k for 16 rows; lacks kE4m3AsF16. The sign-extended code shifted by 7 is the f16
// with the same sign, exponent field and mantissa, but for a copy of the sign below the sign.
inline __m512 LoadCodes(const uint8_t* codes) {
  const __m256i words =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
}

// y of `rows` rows of x and `panels` panels: sums over a group of k in one chain per element, then
// total += sum * scale. Totals wait in memory: registers are for the sums.
template <int rows, int panels>
void Tile(const TileArguments& t) {
  float totals[rows][panels][kPanelRows] = {};
  Prefetcher prefetcher = t.prefetcher;
  const uint8_t* block = t.panel;
  const uint8_t* x = t.x;
  for (int64_t begin = 0; begin < t.k; begin += t.group) {
    const int64_t count = t.k - begin < t.group ? t.k - begin : t.group;
    const int64_t padded = (count + 3) / 4 * 4;
    const uint8_t* codes = block + 4 * kPanelRows;
    __m512 sums[rows][panels];
    for (auto& row : sums) {
      for (__m512& sum : row) sum = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < padded; ++i, codes += kPanelRows, x += sizeof(float)) {
      if (i % 4 == 0) prefetcher.Step();
      __m512 weights[panels];
      for (int p = 0; p < panels; ++p) weights[p] = LoadCodes(codes + p * t.panel_bytes);
      for (int r = 0; r < rows; ++r) {
        const __m512 broadcast = _mm512_set1_ps(*reinterpret_cast<const float*>(x + r * t.x_bytes));
        for (int p = 0; p < panels; ++p) {
          sums[r][p] = _mm512_fmadd_ps(weights[p], broadcast, sums[r][p]);
        }
      }
    }
    for (int p = 0; p < panels; ++p) {
      const __m512 scale =
          _mm512_mul_ps(_mm512_loadu_ps(block + p * t.panel_bytes), _mm512_set1_ps(kE4m3AsF16));
      for (int r = 0; r < rows; ++r) {
        float* total = totals[r][p];
        _mm512_storeu_ps(total, _mm512_fmadd_ps(sums[r][p], scale, _mm512_loadu_ps(total)));
      }
    }
    block += 4 * kPanelRows + padded * kPanelRows;
  }
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) {
      const __mmask16 outputs = p == panels - 1 ? t.outputs : static_cast<__mmask16>(0xffff);
      _mm512_mask_storeu_ps(t.y + r * t.y_stride + p * kPanelRows, outputs,
                            _mm512_loadu_ps(totals[r][p]));
    }
  }
}

// More panels at once hide latency when rows are few.
template <int rows>
void TilePanels(const TileArguments& t, int panels) {
  if (panels == 4) {
    if constexpr (rows <= 4) Tile<rows, 4>(t);
  } else if (panels == 2) {
    Tile<rows, 2>(t);
  } else {
    Tile<rows, 1>(t);
  }
}

using TileFunction = void (*)(const TileArguments& t, int panels);
constexpr TileFunction kTiles[kMaxTileRows] = {TilePanels<1>, TilePanels<2>, TilePanels<3>,
                                               TilePanels<4>, TilePanels<5>, TilePanels<6>,
                                               TilePanels<7>, TilePanels<8>};

}  // namespace

void ForwardFp8(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride) {
  const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  const int64_t widest = rows <= 4 ? 4 : 2;
  TileArguments t;
  t.panel_bytes = matrix.panel_bytes;
  t.k = matrix.k;
  t.group = Fp8GroupOf(matrix.format, matrix.k);
  t.x_bytes = PreparedRowBytes(ActivationKind::kFloat32, matrix.k);
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
                        (matrix.k + 3) / 4);
      t.x = prepared + r * t.x_bytes;
      t.y = y + r * y_stride + p * kPanelRows;
      kTiles[tile - 1](t, static_cast<int>(panels));
    }
  }
}

}  // namespace sluice::kernels::avx512
