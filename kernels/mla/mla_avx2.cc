#include <immintrin.h>

#include "kernels/mla/mla_fast.h"

namespace sluice::kernels::mla_internal {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kScoreRows = 2;   // 4 vectors x 2 rows: 8 sums of 16 registers
  static constexpr int kValueParts = 2;  // 4 vectors x 16 elements: 8 sums

  static Vec Zero() { return _mm256_setzero_ps(); }
  static Vec Set1(float x) { return _mm256_set1_ps(x); }
  static Vec Load(const float* x) { return _mm256_loadu_ps(x); }
  static void Store(float* x, Vec v) { _mm256_storeu_ps(x, v); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }

  static float ReduceMax(Vec a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static float ReduceAdd(Vec a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }

  // The first n lanes of x, the others `fill`.
  static Vec First(Vec x, int n, float fill) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
    return _mm256_blendv_ps(Set1(fill), x, _mm256_castsi256_ps(valid));
  }

  static Vec Exp2(Vec x) {
    x = _mm256_max_ps(x, _mm256_set1_ps(kExp2Min));
    const Vec whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(Exp2Fraction<Avx2>(_mm256_sub_ps(x, whole)),
                         _mm256_castsi256_ps(exponent));
  }

  static Vec LoadBf16(const std::byte* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
  }
  // As bits of f16 an e4m3 code is its value times 2^-8, subnormals included.
  static Vec LoadE4m3(const std::byte* from) {
    const __m128i codes =
        _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    // Sign-extended codes moved up by 7: the sign lands in bit 15 and, to be cleared, in bit 14.
    const __m128i halves =
        _mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
    return Mul(_mm256_cvtph_ps(halves), Set1(256.0f));
  }
  static Vec LoadInt8(const std::byte* from) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
};

}  // namespace

const PathKernels kAvx2 = {kLog2E, FastTile<Avx2>, FastMerge<Avx2>, FastFinish<Avx2>,
                           FastIndex<Avx2>};

}  // namespace sluice::kernels::mla_internal
