#include <immintrin.h>

#include "kernels/attention/attention_fast.h"

namespace sluice::kernels::attention_internal {
namespace {

// High and low byte of the bf16 value of each e4m3 code without its sign: bf16 holds every e4m3
// value exactly.
struct E4m3Tables {
  uint8_t high[128];
  uint8_t low[128];
};

constexpr E4m3Tables MakeE4m3Tables() {
  E4m3Tables tables = {};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3;
    int mantissa = code & 7;
    int bf16 = 0;
    if (exponent > 0) {
      bf16 = ((exponent + 120) << 7) | (mantissa << 4);
    } else if (mantissa > 0) {
      // mantissa * 2^-9 with its leading bit made implicit
      int e = 118;
      for (; mantissa >= 2; mantissa >>= 1) ++e;
      bf16 = e << 7;
      const int fraction = (code & 7) - (1 << (e - 118));
      bf16 |= fraction << (7 - (e - 118));
    }
    tables.high[code] = static_cast<uint8_t>(bf16 >> 8);
    tables.low[code] = static_cast<uint8_t>(bf16 & 0xff);
  }
  return tables;
}

alignas(64) constexpr E4m3Tables kE4m3 = MakeE4m3Tables();

// Byte indices that make 16 floats of 64 codes' low and high bytes: dword i becomes {0, 0, low[c],
// high[c]}. Index 64 and up reads the second table.
struct FloatIndex {
  uint8_t quads[4][64];  // vector j, dword i: c = 4 * i + j, channel j of slot i
  uint8_t line[4][64];   // vector j, dword i: c = 16 * j + i, the codes in order
};

constexpr FloatIndex MakeFloatIndex() {
  FloatIndex index = {};
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 16; ++i) {
      index.quads[j][4 * i + 2] = static_cast<uint8_t>(4 * i + j);
      index.quads[j][4 * i + 3] = static_cast<uint8_t>(64 + 4 * i + j);
      index.line[j][4 * i + 2] = static_cast<uint8_t>(16 * j + i);
      index.line[j][4 * i + 3] = static_cast<uint8_t>(64 + 16 * j + i);
    }
  }
  return index;
}

alignas(64) constexpr FloatIndex kIndex = MakeFloatIndex();

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kParts = 1;  // vectors of a block of 16 slots
  // 32 registers hold four vectors' scores of 64 slots and the keys; converting e4m3 on the way
  // takes 12 of them.
  template <class Source, int kVectors>
  static constexpr int kScoreBlocks = Source::kChannels == 4 && kVectors == 4 ? 2 : 4;
  template <class Source>
  static constexpr int kValueBlocks = 4;
  static constexpr bool kDirect = true;

  static Vec Zero() { return _mm512_setzero_ps(); }
  static Vec Set1(float x) { return _mm512_set1_ps(x); }
  static Vec Load(const float* x) { return _mm512_loadu_ps(x); }
  static void Store(float* x, Vec v) { _mm512_storeu_ps(x, v); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  // Makes the compiler load x once instead of once per use.
  static void Keep(Vec& x) { asm("" : "+v"(x)); }
  static float First(Vec a) { return _mm512_cvtss_f32(a); }
  static float ReduceMax(Vec a) { return _mm512_reduce_max_ps(a); }
  static float ReduceAdd(Vec a) { return _mm512_reduce_add_ps(a); }

  // Lanes [begin, end) of x, the others of `other`.
  static Vec Select(Vec x, int begin, int end, Vec other) {
    const uint32_t below_end = end >= 16 ? 0xffffu : (1u << (end < 0 ? 0 : end)) - 1;
    const uint32_t below_begin = begin <= 0 ? 0u : begin >= 16 ? 0xffffu : (1u << begin) - 1;
    return _mm512_mask_mov_ps(other, static_cast<__mmask16>(below_end & ~below_begin), x);
  }

  static Vec Exp2(Vec x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(kExp2Min));
    const Vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec p = Exp2Fraction<Avx512>(_mm512_sub_ps(x, whole));
    return _mm512_scalef_ps(p, whole);
  }

  // The two bytes of bf16 of 64 codes, sign included.
  static void E4m3Bytes(__m512i codes, __m512i* low, __m512i* high) {
    const __m512i h = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.high), codes,
                                               _mm512_load_si512(kE4m3.high + 64));
    *low = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.low), codes,
                                    _mm512_load_si512(kE4m3.low + 64));
    // h | (codes & 0x80)
    *high = _mm512_ternarylogic_epi32(h, codes, _mm512_set1_epi8(-128), 0xf8);
  }

  static void LoadE4m3(const std::byte* from, const uint8_t (&index)[4][64], Vec* to) {
    __m512i low;
    __m512i high;
    E4m3Bytes(_mm512_loadu_si512(from), &low, &high);
    constexpr __mmask64 kUpperHalves = 0xccccccccccccccccull;
    SLUICE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const __m512i bytes = _mm512_load_si512(index[j]);
      to[j] = _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi8(kUpperHalves, low, bytes, high));
    }
  }

  // 64 codes [16][4] to [4][16].
  static void LoadE4m3Quads(const std::byte* from, Vec (&to)[4][1]) {
    LoadE4m3(from, kIndex.quads, &to[0][0]);
  }

  // 64 codes in order.
  static void LoadE4m3(const std::byte* from, Vec (&to)[4]) { LoadE4m3(from, kIndex.line, to); }

  // 16 codes in order.
  static Vec LoadInt8(const std::byte* from) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }

  // 64 codes [16][4] to [4][16].
  static void LoadInt8Quads(const std::byte* from, Vec (&to)[4][1]) {
    const __m512i codes = _mm512_loadu_si512(from);
    SLUICE_UNROLL
    for (int channel = 0; channel < 4; ++channel) {
      const __m512i top = _mm512_slli_epi32(codes, static_cast<unsigned>(24 - 8 * channel));
      to[channel][0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
    }
  }

  // 32 bf16 [16][2] to [2][16].
  static void LoadBf16Pairs(const std::byte* from, Vec (&to)[2][1]) {
    const __m512i pairs = _mm512_loadu_si512(from);
    to[0][0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    to[1][0] = _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  // 16 bf16 in order.
  static Vec LoadBf16(const std::byte* from) {
    const __m512i codes =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
  }

  // 16 scales.
  static void ExpandBf16(const std::byte* from, float* to) { Store(to, LoadBf16(from)); }

  // 16 scales; byte 0 is 2^-127, a subnormal with its own bits.
  static void ExpandUe8m0(const std::byte* from, float* to) {
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    _mm512_storeu_si512(
        to, _mm512_max_epu32(_mm512_slli_epi32(codes, 23), _mm512_set1_epi32(0x00400000)));
  }

  // 16 scales.
  static void ExpandUe5m3(const std::byte* from, float* to) {
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    _mm512_storeu_si512(
        to, _mm512_add_epi32(_mm512_slli_epi32(codes, 20), _mm512_set1_epi32((127 - 22) << 23)));
  }
};

}  // namespace

const PathKernels kAvx512 = {kLog2E, FastTile<Avx512>, FastMerge<Avx512>, FastFinish<Avx512>};

}  // namespace sluice::kernels::attention_internal
