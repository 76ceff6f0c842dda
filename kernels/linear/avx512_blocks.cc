// Block formats on AVX-512 VNNI: all 16 rows of a panel in a vector.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx512 {
namespace {

constexpr int kWidth = 16;

using Vec = __m512;
using IntVec = __m512i;

inline Vec Broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec ToFloat(IntVec x) { return _mm512_cvtepi32_ps(x); }

// A shift after a broadcast from memory is cheaper than a multiplication before it.
template <int factor>
inline IntVec Times(int32_t x) {
  if constexpr (factor == 0) {
    return _mm512_setzero_si512();
  } else {
    constexpr int shift = __builtin_ctz(static_cast<unsigned>(factor));
    static_assert(factor == 1 << shift);
    return _mm512_slli_epi32(_mm512_set1_epi32(x), shift);
  }
}

inline IntVec BroadcastTable(const uint8_t* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline IntVec LookUp(IntVec table, IntVec codes) { return _mm512_shuffle_epi8(table, codes); }

template <int bits>
inline IntVec LoadQuad(const uint8_t* codes, int /*part: always 0*/, int half, int j) {
  if constexpr (bits == 8) {
    return _mm512_loadu_si512(codes + (half * 4 + j) * 64);
  } else {
    __m512i nibbles = _mm512_loadu_si512(codes + j * 64);
    if (half == 1) nibbles = _mm512_srli_epi16(nibbles, 4);
    __m512i quad = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
    const uint8_t* high = codes + 4 * 64;
    if constexpr (bits == 5) {
      const __mmask64 fifth = _load_mask64(
          reinterpret_cast<__mmask64*>(const_cast<uint8_t*>(high + (half * 4 + j) * 8)));
      quad = _mm512_mask_add_epi8(quad, fifth, quad, _mm512_set1_epi8(16));
    } else if constexpr (bits == 6) {
      const __m512i pairs = _mm512_loadu_si512(high + half * 64);
      const unsigned place = static_cast<unsigned>(2 * j);
      const __m512i shifted =
          place < 4 ? _mm512_slli_epi16(pairs, 4 - place) : _mm512_srli_epi16(pairs, place - 4);
      // (shifted & 0x30) | quad
      quad = _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi8(0x30), quad, 0xea);
    }
    return quad;
  }
}

typedef int32_t UnalignedInt __attribute__((may_alias, aligned(1)));

// Inline assembly: GCC 12 keeps the accumulators of _mm512_dpwssd_epi32 and _mm512_dpbusd_epi32 on
// the stack.
template <int largest>
struct Int16Dot {
  using Block = Int16Block;
  static constexpr int kMaxRows = 8;
  static constexpr int kOffset = 0;
  struct Quad {
    IntVec even;
    IntVec odd;
  };
  static Quad MakeQuad(IntVec quad) {
    return {_mm512_and_si512(quad, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(quad, 8)};
  }
  void Start(IntVec term) { sum = term; }
  void Add(int /*quad*/, const Quad& weights, const int16_t* x) {
    AddPair(weights.even, x);
    AddPair(weights.odd, x + 2);
  }
  IntVec Total() const { return sum; }

 private:
  void AddPair(IntVec weights, const int16_t* x) {
    asm("vpdpwssd %[x]%{1to16%}, %[weights], %[sum]"
        : [sum] "+v"(sum)
        : [weights] "v"(weights), [x] "m"(*reinterpret_cast<const UnalignedInt*>(x)));
  }
  IntVec sum;
};

template <int largest>
struct Int8Dot {
  using Block = Int8Block;
  static constexpr int kMaxRows = 12;
  static constexpr int kOffset = 0;
  using Quad = IntVec;
  static Quad MakeQuad(IntVec quad) { return quad; }
  void Start(IntVec term) { sum = term; }
  void Add(int /*quad*/, IntVec weights, const int8_t* x) {
    asm("vpdpbusd %[x]%{1to16%}, %[weights], %[sum]"
        : [sum] "+v"(sum)
        : [weights] "v"(weights), [x] "m"(*reinterpret_cast<const UnalignedInt*>(x)));
  }
  IntVec Total() const { return sum; }

 private:
  IntVec sum;
};

inline Vec LoadHalves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

template <PackedScale scale>
inline Vec LoadScales(const uint8_t* p, int64_t at) {
  if constexpr (scale == PackedScale::kF16) {
    return LoadHalves(p + 2 * at);
  } else if constexpr (scale == PackedScale::kBf16) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 2 * at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
  } else {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + at));
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return _mm512_cvtph_ps(
        _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
}

}  // namespace

#include "kernels/linear/blocks.inc"

}  // namespace sluice::kernels::avx512
