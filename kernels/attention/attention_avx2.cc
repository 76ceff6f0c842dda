#include <immintrin.h>

#include "kernels/attention/attention_fast.h"

namespace sluice::kernels::attention_internal {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kParts = 2;  // vectors of a block of 16 slots
  // 16 registers: 4 vectors x 16 slots take 8, keys and queries 3 more; none are left to convert
  // in.
  template <class Source, int kVectors>
  static constexpr int kScoreBlocks = 1;
  template <class Source>
  static constexpr int kValueBlocks = 1;
  static constexpr bool kDirect = false;

  static Vec Zero() { return _mm256_setzero_ps(); }
  static Vec Set1(float x) { return _mm256_set1_ps(x); }
  static Vec Load(const float* x) { return _mm256_loadu_ps(x); }
  static void Store(float* x, Vec v) { _mm256_storeu_ps(x, v); }
  static void StoreBits(float* x, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), v);
  }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  // Makes the compiler load x once instead of once per use.
  static void Keep(Vec& x) { asm("" : "+x"(x)); }
  static float First(Vec a) { return _mm256_cvtss_f32(a); }

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

  // Lanes [begin, end) of x, the others of `other`.
  static Vec Select(Vec x, int begin, int end, Vec other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i valid = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                              _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(valid));
  }

  static Vec Exp2(Vec x) {
    x = _mm256_max_ps(x, _mm256_set1_ps(kExp2Min));
    const Vec whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec p = Exp2Fraction<Avx2>(_mm256_sub_ps(x, whole));
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
  }

  // 8 codes in order: as bits of f16 an e4m3 code is its value times 2^-8, subnormals included.
  static Vec E4m3Half(__m128i codes16) {
    // Sign-extended codes moved up by 7: the sign lands in bit 15 and, to be cleared, in bit 14.
    const __m128i halves =
        _mm_and_si128(_mm_slli_epi16(codes16, 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
    return Mul(_mm256_cvtph_ps(halves), Set1(256.0f));
  }

  // 64 codes in order.
  static void LoadE4m3(const std::byte* from, Vec (&to)[8]) {
    SLUICE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i * 8));
      to[i] = E4m3Half(_mm_cvtepi8_epi16(codes));
    }
  }

  // 64 codes [16][4] to [4][16].
  static void LoadE4m3Quads(const std::byte* from, Vec (&to)[4][2]) {
    // Within each 16 bytes (4 slots): channel by channel.
    const __m256i by_channel = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i join = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half * 32));
      // 8 bytes (8 slots) of channel 0, then 1, 2, 3.
      const __m256i sorted =
          _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(codes, by_channel), join);
      const __m128i first = _mm256_castsi256_si128(sorted);
      const __m128i second = _mm256_extracti128_si256(sorted, 1);
      to[0][half] = E4m3Half(_mm_cvtepi8_epi16(first));
      to[1][half] = E4m3Half(_mm_cvtepi8_epi16(_mm_srli_si128(first, 8)));
      to[2][half] = E4m3Half(_mm_cvtepi8_epi16(second));
      to[3][half] = E4m3Half(_mm_cvtepi8_epi16(_mm_srli_si128(second, 8)));
    }
  }

  // 8 codes in order.
  static Vec LoadInt8(const std::byte* from) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }

  // 64 codes [16][4] to [4][16].
  static void LoadInt8Quads(const std::byte* from, Vec (&to)[4][2]) {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half * 32));
      SLUICE_UNROLL
      for (int channel = 0; channel < 4; ++channel) {
        const __m256i top = _mm256_slli_epi32(codes, 24 - 8 * channel);
        to[channel][half] = _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
      }
    }
  }

  // 32 bf16 [16][2] to [2][16].
  static void LoadBf16Pairs(const std::byte* from, Vec (&to)[2][2]) {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half * 32));
      to[0][half] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
      to[1][half] = _mm256_castsi256_ps(
          _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    }
  }

  // 8 bf16 in order.
  static Vec LoadBf16(const std::byte* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
  }

  // 16 scales.
  static void ExpandBf16(const std::byte* from, float* to) {
    Store(to, LoadBf16(from));
    Store(to + 8, LoadBf16(from + 16));
  }

  // 16 scales; byte 0 is 2^-127, a subnormal with its own bits.
  static void ExpandUe8m0(const std::byte* from, float* to) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i smallest = _mm256_set1_epi32(0x00400000);
    StoreBits(to, _mm256_max_epu32(_mm256_slli_epi32(_mm256_cvtepu8_epi32(codes), 23), smallest));
    StoreBits(to + 8,
              _mm256_max_epu32(
                  _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)), 23), smallest));
  }

  // 16 scales.
  static void ExpandUe5m3(const std::byte* from, float* to) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i lowest = _mm256_set1_epi32((127 - 22) << 23);
    StoreBits(to, _mm256_add_epi32(_mm256_slli_epi32(_mm256_cvtepu8_epi32(codes), 20), lowest));
    StoreBits(to + 8,
              _mm256_add_epi32(
                  _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)), 20), lowest));
  }
};

}  // namespace

const PathKernels kAvx2 = {kLog2E, FastTile<Avx2>, FastMerge<Avx2>, FastFinish<Avx2>};

}  // namespace sluice::kernels::attention_internal
