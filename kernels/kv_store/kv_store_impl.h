// Private to kv_store: one row of one KV head, quantised by each path; the scattering into pages is
// common.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace sluice::kernels::kv_store_internal {

// Largest magnitude bits of x[0, n): an integer maximum, so the order of the reduction does not
// matter and NaN counts as larger than infinity. n is a multiple of 16. QuantiseE4m3: codes[i] =
// e4m3(x[i] * inverse_scale). QuantiseInt8: the same to int8. RoundBf16: out[i] = bf16(x[i]).
// SquaredMisses: the sum of (r(y) - y)^2 over y = x[i] * inverse_scale, where r rounds to 4
// significant bits, as e4m3 does above its subnormals: r(y) - y is what y * (2^20 + 1) loses by
// rounding, which one fused operation gives exactly. Summed in 16 lanes, i % 16, and these by
// halves, so that all paths have the same bits.
inline constexpr float kKeepFourBits = 0x1p20f + 1;

struct RowKernels {
  uint32_t (*max_magnitude)(const float* x, int n);
  void (*quantise_e4m3)(const float* x, int n, float inverse_scale, uint8_t* codes);
  void (*quantise_int8)(const float* x, int n, float inverse_scale, uint8_t* codes);
  void (*round_bf16)(const float* x, int n, uint16_t* out);
  float (*squared_misses)(const float* x, int n, float inverse_scale);
};

extern const RowKernels kReferenceRows;
extern const RowKernels kAvx2Rows;
extern const RowKernels kAvx512Rows;

const RowKernels& RowKernelsOf(IsaPath path);

}  // namespace sluice::kernels::kv_store_internal
