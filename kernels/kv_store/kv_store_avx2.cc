#include <immintrin.h>

#include "kernels/kv_store/kv_store_impl.h"

namespace sluice::kernels::kv_store_internal {
namespace {

__m256i LoadBits(const float* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }

uint32_t MaxMagnitude(const float* x, int n) {
  const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);
  __m256i max = _mm256_setzero_si256();
  for (int i = 0; i < n; i += 8) {
    max = _mm256_max_epu32(max, _mm256_and_si256(LoadBits(x + i), magnitude_mask));
  }
  __m128i half = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
}

float SumByHalves(__m256 lanes) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}

// The arithmetic of FloatToE4m3, 8 values at once: both ranges are computed, the right one is
// chosen.
__m256i E4m3Codes(__m256 value) {
  const __m256 shift = _mm256_set1_ps(0x1p14f);
  // min and max return their second operand when the first is NaN: a NaN becomes +448.
  const __m256i bits = _mm256_castps_si256(
      _mm256_max_ps(_mm256_min_ps(value, _mm256_set1_ps(448.0f)), _mm256_set1_ps(-448.0f)));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(magnitude, odd), _mm256_set1_epi32(0x7ffff - 0x3c000000));
  const __m256i shifted = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), shift));
  const __m256i small = _mm256_sub_epi32(shifted, _mm256_castps_si256(shift));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), magnitude);
  const __m256i code = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 20), small, is_small);
  return _mm256_or_si256(code, sign);
}

// 16 words of two vectors of dwords, in order. Packing works within 128-bit halves; the permute
// puts them right.
__m256i PackWords(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

void QuantiseE4m3(const float* x, int n, float inverse_scale, uint8_t* codes) {
  const __m256 inverse = _mm256_set1_ps(inverse_scale);
  for (int i = 0; i < n; i += 16) {
    const __m256i low = E4m3Codes(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
    const __m256i high = E4m3Codes(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), inverse));
    const __m256i words = PackWords(low, high);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(codes + i),
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
}

// A NaN becomes 127, as above.
__m256i Int8Codes(__m256 value) {
  return _mm256_cvtps_epi32(
      _mm256_max_ps(_mm256_min_ps(value, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f)));
}

void QuantiseInt8(const float* x, int n, float inverse_scale, uint8_t* codes) {
  const __m256 inverse = _mm256_set1_ps(inverse_scale);
  for (int i = 0; i < n; i += 16) {
    const __m256i low = Int8Codes(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
    const __m256i high = Int8Codes(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), inverse));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(codes + i),
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
}

__m256i Bf16Codes(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)),
                                         _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}

void RoundBf16(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        PackWords(Bf16Codes(LoadBits(x + i)), Bf16Codes(LoadBits(x + i + 8))));
  }
}

__m256 AddSquareOfMiss(const float* x, __m256 inverse, __m256 sum) {
  const __m256 keep = _mm256_set1_ps(kKeepFourBits);
  const __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x), inverse);
  const __m256 miss = _mm256_fnmadd_ps(y, keep, _mm256_mul_ps(y, keep));
  return _mm256_fmadd_ps(miss, miss, sum);
}

float SquaredMisses(const float* x, int n, float inverse_scale) {
  const __m256 inverse = _mm256_set1_ps(inverse_scale);
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 16) {
    low = AddSquareOfMiss(x + i, inverse, low);
    high = AddSquareOfMiss(x + i + 8, inverse, high);
  }
  return SumByHalves(_mm256_add_ps(low, high));
}

}  // namespace

const RowKernels kAvx2Rows = {MaxMagnitude, QuantiseE4m3, QuantiseInt8, RoundBf16, SquaredMisses};

}  // namespace sluice::kernels::kv_store_internal
