#include <immintrin.h>

#include "kernels/mla/mla_fast.h"

namespace sluice::kernels::mla_internal {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kScoreRows = 4;   // 4 vectors x 4 rows: 16 sums
  static constexpr int kValueParts = 4;  // 4 vectors x 64 elements: 16 sums

  static Vec Zero() { return _mm512_setzero_ps(); }
  static Vec Set1(float x) { return _mm512_set1_ps(x); }
  static Vec Load(const float* x) { return _mm512_loadu_ps(x); }
  static void Store(float* x, Vec v) { _mm512_storeu_ps(x, v); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static float ReduceMax(Vec a) { return _mm512_reduce_max_ps(a); }
  static float ReduceAdd(Vec a) { return _mm512_reduce_add_ps(a); }

  // The first n lanes of x, the others `fill`.
  static Vec First(Vec x, int n, float fill) {
    const uint32_t mask = n >= kLanes ? 0xffffu : (1u << n) - 1;
    return _mm512_mask_mov_ps(Set1(fill), static_cast<__mmask16>(mask), x);
  }

  static Vec Exp2(Vec x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(kExp2Min));
    const Vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(Exp2Fraction<Avx512>(_mm512_sub_ps(x, whole)), whole);
  }

  static Vec LoadBf16(const std::byte* from) {
    const __m512i codes =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
  }
  // As bits of f16 an e4m3 code is its value times 2^-8, subnormals included.
  static Vec LoadE4m3(const std::byte* from) {
    const __m256i codes =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    // Sign-extended codes moved up by 7: the sign lands in bit 15 and, to be cleared, in bit 14.
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7),
                                            _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
    return Mul(_mm512_cvtph_ps(halves), Set1(256.0f));
  }
  static Vec LoadInt8(const std::byte* from) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
};

}  // namespace

const PathKernels kAvx512 = {kLog2E, FastTile<Avx512>, FastMerge<Avx512>, FastFinish<Avx512>,
                             FastIndex<Avx512>};

}  // namespace sluice::kernels::mla_internal
