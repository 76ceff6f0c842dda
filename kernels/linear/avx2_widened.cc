// FP8 and palette-coded weights on AVX2: 8 rows of a panel in a vector.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx2 {
namespace {

constexpr int kMaxTileRows = 4;
constexpr int kWidth = 8;
constexpr int kSums = 8;

using Vec = __m256;
using Bytes = __m256i;

inline Vec Broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec Load(const float* p) { return _mm256_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

// The sign-extended code shifted by 7 is the f16 with the same sign, exponent field and mantissa,
// but for a copy of the sign below the sign.
inline Vec LoadE4m3(const uint8_t* codes) {
  const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_cvtph_ps(
      _mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
}

inline Bytes LoadBytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Bytes BroadcastTable(const uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline Bytes LookUp(Bytes table, Bytes indices) { return _mm256_shuffle_epi8(table, indices); }
inline Bytes LoadCodes(const uint8_t* step, int part) { return LoadBytes(step + part * 32); }
inline Bytes LoadIndices(const uint8_t* step, int part) {
  Bytes nibbles = LoadBytes(step + 64);
  if (part == 1) nibbles = _mm256_srli_epi16(nibbles, 4);
  return _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
}
inline Bytes SignBits() { return _mm256_set1_epi8(static_cast<char>(0x80)); }
inline Bytes WithSign(Bytes exponent, Bytes codes) {
  return _mm256_or_si256(exponent, _mm256_and_si256(codes, SignBits()));
}
inline Bytes WithMantissa(Bytes exponent, Bytes codes) {
  return _mm256_or_si256(exponent, _mm256_andnot_si256(SignBits(), codes));
}

inline void WidenBf16(Bytes high, Bytes low, Vec* weights) {
  const Bytes odd = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  const Bytes first = _mm256_unpacklo_epi8(low, high);
  const Bytes second = _mm256_unpackhi_epi8(low, high);
  weights[0] = _mm256_castsi256_ps(_mm256_slli_epi32(first, 16));
  weights[1] = _mm256_castsi256_ps(_mm256_and_si256(first, odd));
  weights[2] = _mm256_castsi256_ps(_mm256_slli_epi32(second, 16));
  weights[3] = _mm256_castsi256_ps(_mm256_and_si256(second, odd));
}

}  // namespace

#include "kernels/linear/widened.inc"

}  // namespace sluice::kernels::avx2
