// FP8 weights on AVX2: e4m3 codes widened to float32 in registers, scales per 128 or per row.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx2 {
namespace {

constexpr int kMaxTileRows = 4;

struct TileArguments {
  const uint8_t* panel;
  int64_t panel_bytes;
  int64_t k;
  int64_t group;  // elements of k that share a scale
  const uint8_t* x;
  int64_t x_bytes;
  Prefetcher prefetcher;
};

// One element of k for 16 rows; lacks kE4m3AsF16. The sign-extended code shifted by 7 is the f16
// with the same sign, exponent field and mantissa, but for a copy of the sign below the sign.
inline void LoadCodes(const uint8_t* codes, __m256* low, __m256* high) {
  const __m256i words =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(words, 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  *low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  *high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

// y of `rows` rows of x and `panels` panels: sums over a group of k in one chain per element, then
// total += sum * scale.
template <int rows, int panels>
void Tile(const TileArguments& t, float (*out)[kMaxTileRows][kPanelRows]) {
  Prefetcher prefetcher = t.prefetcher;
  const uint8_t* block = t.panel;
  const uint8_t* x = t.x;
  for (int p = 0; p < panels; ++p) std::memset(out[p], 0, sizeof(out[p][0]) * rows);
  for (int64_t begin = 0; begin < t.k; begin += t.group) {
    const int64_t count = t.k - begin < t.group ? t.k - begin : t.group;
    const int64_t padded = (count + 3) / 4 * 4;
    const uint8_t* codes = block + 4 * kPanelRows;
    __m256 sums[rows][panels][2];
    for (auto& row : sums) {
      for (auto& sum : row) sum[0] = sum[1] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < padded; ++i, codes += kPanelRows, x += sizeof(float)) {
      if (i % 4 == 0) prefetcher.Step();
      for (int p = 0; p < panels; ++p) {
        __m256 low;
        __m256 high;
        LoadCodes(codes + p * t.panel_bytes, &low, &high);
        for (int r = 0; r < rows; ++r) {
          const __m256 broadcast =
              _mm256_broadcast_ss(reinterpret_cast<const float*>(x + r * t.x_bytes));
          sums[r][p][0] = _mm256_fmadd_ps(low, broadcast, sums[r][p][0]);
          sums[r][p][1] = _mm256_fmadd_ps(high, broadcast, sums[r][p][1]);
        }
      }
    }
    for (int p = 0; p < panels; ++p) {
      const float* scales = reinterpret_cast<const float*>(block + p * t.panel_bytes);
      for (int lanes = 0; lanes < 2; ++lanes) {
        const __m256 scale =
            _mm256_mul_ps(_mm256_loadu_ps(scales + lanes * 8), _mm256_set1_ps(kE4m3AsF16));
        for (int r = 0; r < rows; ++r) {
          float* total = out[p][r] + lanes * 8;
          _mm256_storeu_ps(total,
                           _mm256_fmadd_ps(sums[r][p][lanes], scale, _mm256_loadu_ps(total)));
        }
      }
    }
    block += 4 * kPanelRows + padded * kPanelRows;
  }
}

using TileFunction = void (*)(const TileArguments& t, float (*out)[kMaxTileRows][kPanelRows]);

// Eight chains of sums hide the latency of an addition; more do not fit the registers.
constexpr TileFunction kTiles[kMaxTileRows] = {Tile<1, 1>, Tile<2, 1>, Tile<3, 1>, Tile<4, 1>};
constexpr TileFunction kWideTiles[2] = {Tile<1, 4>, Tile<2, 2>};
constexpr int64_t kWidth[kMaxTileRows] = {4, 2, 1, 1};

}  // namespace

void ForwardFp8(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows,
                int64_t panel_begin, int64_t panel_end, float* y, int64_t y_stride) {
  TileArguments t;
  t.panel_bytes = matrix.panel_bytes;
  t.k = matrix.k;
  t.group = Fp8GroupOf(matrix.format, matrix.k);
  t.x_bytes = PreparedRowBytes(ActivationKind::kFloat32, matrix.k);
  const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  const int64_t widest = rows <= kMaxTileRows ? kWidth[rows - 1] : 1;
  int64_t panels = 0;
  for (int64_t p = panel_begin; p < panel_end; p += panels) {
    panels = panel_end - p < widest ? 1 : widest;
    t.panel = matrix.data + p * matrix.panel_bytes;
    const int64_t next_bytes = p + 2 * panels <= panel_end ? panels * t.panel_bytes : 0;
    for (int64_t r = 0; r < rows; r += kMaxTileRows) {
      const int64_t tile = rows - r < kMaxTileRows ? rows - r : kMaxTileRows;
      float out[4][kMaxTileRows][kPanelRows];
      t.prefetcher.Plan(t.panel + panels * t.panel_bytes, next_bytes, r / kMaxTileRows, tiles,
                        (matrix.k + 3) / 4);
      t.x = prepared + r * t.x_bytes;
      (panels > 1 ? kWideTiles : kTiles)[tile - 1](t, out);
      for (int64_t i = 0; i < panels * tile; ++i) {
        const int64_t panel = p + i / tile;
        const int64_t left = matrix.n - panel * kPanelRows;
        const size_t outputs = static_cast<size_t>(left < kPanelRows ? left : kPanelRows);
        std::memcpy(y + (r + i % tile) * y_stride + panel * kPanelRows, out[i / tile][i % tile],
                    outputs * sizeof(float));
      }
    }
  }
}

}  // namespace sluice::kernels::avx2
