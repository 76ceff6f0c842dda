// Block formats on AVX2: 8 rows of a panel in a vector.
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::avx2 {
namespace {

constexpr int kWidth = 8;

using Vec = __m256;
using IntVec = __m256i;

inline Vec Broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec Load(const float* p) { return _mm256_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec ToFloat(IntVec x) { return _mm256_cvtepi32_ps(x); }

template <int factor>
inline IntVec Times(int32_t x) {
  return _mm256_set1_epi32(x * factor);
}

inline IntVec BroadcastTable(const uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline IntVec LookUp(IntVec table, IntVec codes) { return _mm256_shuffle_epi8(table, codes); }

inline __m256i LoadBytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// 0x10 in every byte whose bit is set in the 32 bits at `p`.
inline __m256i FifthBits(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i select = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, select), select);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

template <int bits>
inline IntVec LoadQuad(const uint8_t* codes, int part, int half, int j) {
  if constexpr (bits == 8) {
    return LoadBytes(codes + (half * 4 + j) * 64 + part * 32);
  } else {
    __m256i nibbles = LoadBytes(codes + j * 64 + part * 32);
    if (half == 1) nibbles = _mm256_srli_epi16(nibbles, 4);
    __m256i quad = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
    const uint8_t* high = codes + 4 * 64;
    if constexpr (bits == 5) {
      quad = _mm256_or_si256(quad, FifthBits(high + (half * 4 + j) * 8 + part * 4));
    } else if constexpr (bits == 6) {
      const __m256i pairs = LoadBytes(high + half * 64 + part * 32);
      const __m256i shifted =
          j < 2 ? _mm256_slli_epi16(pairs, 4 - 2 * j) : _mm256_srli_epi16(pairs, 2 * j - 4);
      quad = _mm256_or_si256(quad, _mm256_and_si256(shifted, _mm256_set1_epi8(0x30)));
    }
    return quad;
  }
}

template <typename Code>
inline IntVec BroadcastCodes(const Code* x) {
  int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return _mm256_set1_epi32(word);
}

// The empty assembly keeps the order of additions: GCC would turn them into a tree whose leaves it
// stores.
inline void KeepOrder(IntVec& sum) { asm("" : "+x"(sum)); }

template <int largest>
struct Int16Dot {
  using Block = Int16Block;
  static constexpr int kMaxRows = 4;
  static constexpr int kOffset = 0;
  struct Quad {
    IntVec even;
    IntVec odd;
  };
  static Quad MakeQuad(IntVec quad) {
    return {_mm256_and_si256(quad, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(quad, 8)};
  }
  void Start(IntVec term) { sum = term; }
  void Add(int /*quad*/, const Quad& weights, const int16_t* x) {
    AddPair(weights.even, x);
    AddPair(weights.odd, x + 2);
  }
  IntVec Total() const { return sum; }

 private:
  void AddPair(IntVec weights, const int16_t* x) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, BroadcastCodes(x)));
    KeepOrder(sum);
  }
  IntVec sum;
};

// Pairs of products are added in 16 bits, and as many quads of them as cannot overflow there.
template <int largest>
struct Int8Dot {
  using Block = Int8Block;
  static constexpr int kMaxRows = 4;
  static constexpr int kOffset = 0;
  static constexpr int kPairMax = 2 * 127 * largest;
  static constexpr int kQuads = 8 * kPairMax < 32768 ? 8 : 4 * kPairMax < 32768 ? 4 : 2;
  static_assert(kQuads * kPairMax < 32768);
  using Quad = IntVec;
  static Quad MakeQuad(IntVec quad) { return quad; }
  void Start(IntVec term) { sum = term; }
  void Add(int quad, IntVec weights, const int8_t* x) {
    const IntVec pairs = _mm256_maddubs_epi16(weights, BroadcastCodes(x));
    words = quad % kQuads == 0 ? pairs : _mm256_add_epi16(words, pairs);
    KeepOrder(words);
    if (quad % kQuads != kQuads - 1) return;
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
  IntVec Total() const { return sum; }

 private:
  IntVec sum;
  IntVec words;
};

// 8 bits: the product of the magnitude of code - 128 with x under its sign; a pair of them is at
// most 2 * 128 * 127.
template <>
struct Int8Dot<255> {
  using Block = Int8Block;
  static constexpr int kMaxRows = 4;
  static constexpr int kOffset = 128;
  struct Quad {
    IntVec magnitude;
    IntVec value;
  };
  static Quad MakeQuad(IntVec quad) {
    const IntVec value = _mm256_xor_si256(quad, _mm256_set1_epi8(-128));
    return {_mm256_abs_epi8(value), value};
  }
  void Start(IntVec term) { sum = term; }
  void Add(int /*quad*/, const Quad& weights, const int8_t* x) {
    const IntVec signs = _mm256_sign_epi8(BroadcastCodes(x), weights.value);
    const IntVec pairs = _mm256_maddubs_epi16(weights.magnitude, signs);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    KeepOrder(sum);
  }
  IntVec Total() const { return sum; }

 private:
  IntVec sum;
};

inline Vec LoadHalves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

template <PackedScale scale>
inline Vec LoadScales(const uint8_t* p, int64_t at) {
  if constexpr (scale == PackedScale::kF16) {
    return LoadHalves(p + 2 * at);
  } else if constexpr (scale == PackedScale::kBf16) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
  } else {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + at));
    const __m128i shifted = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
    return _mm256_cvtph_ps(_mm_and_si128(shifted, _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
}

}  // namespace

#include "kernels/linear/blocks.inc"

}  // namespace sluice::kernels::avx2
