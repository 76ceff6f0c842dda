#include <immintrin.h>

#include "kernels/kv_store/kv_store_impl.h"

namespace sluice::kernels::kv_store_internal {
namespace {

uint32_t MaxMagnitude(const float* x, int n) {
  const __m512i magnitude_mask = _mm512_set1_epi32(0x7fffffff);
  __m512i max = _mm512_setzero_si512();
  for (int i = 0; i < n; i += 16) {
    max = _mm512_max_epu32(max, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude_mask));
  }
  return _mm512_reduce_max_epu32(max);
}

// The arithmetic of FloatToE4m3, 16 values at once: both ranges are computed, the right one is
// chosen.
void QuantiseE4m3(const float* x, int n, float inverse_scale, uint8_t* codes) {
  const __m512 inverse = _mm512_set1_ps(inverse_scale);
  const __m512 limit = _mm512_set1_ps(448.0f);
  const __m512 shift = _mm512_set1_ps(0x1p14f);
  for (int i = 0; i < n; i += 16) {
    // min and max return their second operand when the first is NaN: a NaN becomes +448.
    const __m512 scaled =
        _mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse), limit),
                      _mm512_set1_ps(-448.0f));
    const __m512i bits = _mm512_castps_si512(scaled);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(magnitude, odd), _mm512_set1_epi32(0x7ffff - 0x3c000000));
    const __m512i shifted =
        _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), shift));
    const __m512i small = _mm512_sub_epi32(shifted, _mm512_castps_si512(shift));
    const __mmask16 is_small = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(0x3c800000));
    const __m512i code = _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 20), is_small, small);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i),
                     _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign)));
  }
}

void QuantiseInt8(const float* x, int n, float inverse_scale, uint8_t* codes) {
  const __m512 inverse = _mm512_set1_ps(inverse_scale);
  for (int i = 0; i < n; i += 16) {
    // A NaN becomes 127, as above.
    const __m512 scaled = _mm512_max_ps(
        _mm512_min_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse), _mm512_set1_ps(127.0f)),
        _mm512_set1_ps(-127.0f));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i),
                     _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(scaled)));
  }
}

// Integer rounding rather than vcvtneps2bf16, which turns subnormals into zero.
void RoundBf16(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; i += 16) {
    const __m512i bits = _mm512_loadu_si512(x + i);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff)), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmpgt_epu32_mask(
        _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet)));
  }
}

float SquaredMisses(const float* x, int n, float inverse_scale) {
  const __m512 inverse = _mm512_set1_ps(inverse_scale);
  const __m512 keep = _mm512_set1_ps(kKeepFourBits);
  __m512 lanes = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) {
    const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(x + i), inverse);
    const __m512 miss = _mm512_fnmadd_ps(y, keep, _mm512_mul_ps(y, keep));
    lanes = _mm512_fmadd_ps(miss, miss, lanes);
  }
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}

}  // namespace

const RowKernels kAvx512Rows = {MaxMagnitude, QuantiseE4m3, QuantiseInt8, RoundBf16, SquaredMisses};

}  // namespace sluice::kernels::kv_store_internal
