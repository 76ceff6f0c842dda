// FP8 and palette-coded weights on AVX-512: the 16 rows of a panel in a vector.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx512 {
namespace {

constexpr int kMaxTileRows = 8;
constexpr int kWidth = 16;
constexpr int kSums = 16;

using Vec = __m512;
using Bytes = __m512i;

inline Vec Broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

// The sign-extended code shifted by 7 is the f16 with the same sign, exponent field and mantissa,
// but for a copy of the sign below the sign.
inline Vec LoadE4m3(const uint8_t* codes) {
  const __m256i words =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
}

inline Bytes BroadcastTable(const uint8_t* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline Bytes LookUp(Bytes table, Bytes indices) { return _mm512_shuffle_epi8(table, indices); }
inline Bytes LoadCodes(const uint8_t* step, int /*part: always 0*/) {
  return _mm512_loadu_si512(step);
}
inline Bytes LoadIndices(const uint8_t* step, int /*part: always 0*/) {
  const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(step + 64));
  const Bytes nibbles =
      _mm512_inserti64x4(_mm512_castsi256_si512(packed), _mm256_srli_epi16(packed, 4), 1);
  return _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
}
inline Bytes SignBits() { return _mm512_set1_epi8(static_cast<char>(0x80)); }
inline Bytes WithSign(Bytes exponent, Bytes codes) {
  return _mm512_ternarylogic_epi32(exponent, codes, SignBits(), 0xf8);  // a | (b & c)
}
inline Bytes WithMantissa(Bytes exponent, Bytes codes) {
  return _mm512_ternarylogic_epi32(exponent, codes, SignBits(), 0xf4);  // a | (b & ~c)
}

inline void WidenBf16(Bytes high, Bytes low, Vec* weights) {
  const Bytes odd = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const Bytes first = _mm512_unpacklo_epi8(low, high);
  const Bytes second = _mm512_unpackhi_epi8(low, high);
  weights[0] = _mm512_castsi512_ps(_mm512_slli_epi32(first, 16));
  weights[1] = _mm512_castsi512_ps(_mm512_and_si512(first, odd));
  weights[2] = _mm512_castsi512_ps(_mm512_slli_epi32(second, 16));
  weights[3] = _mm512_castsi512_ps(_mm512_and_si512(second, odd));
}

}  // namespace

#include "kernels/linear/widened.inc"

}  // namespace sluice::kernels::avx512
