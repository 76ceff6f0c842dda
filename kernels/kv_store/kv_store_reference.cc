#include <cmath>

#include "kernels/fp/fp.h"
#include "kernels/kv_store/kv_store_impl.h"

namespace sluice::kernels::kv_store_internal {
namespace {

uint32_t MaxMagnitude(const float* x, int n) {
  uint32_t max = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t magnitude = FloatBits(x[i]) & 0x7fffffffu;
    if (magnitude > max) max = magnitude;
  }
  return max;
}

void QuantiseE4m3(const float* x, int n, float inverse_scale, uint8_t* codes) {
  for (int i = 0; i < n; ++i) codes[i] = FloatToE4m3(x[i] * inverse_scale);
}

void QuantiseInt8(const float* x, int n, float inverse_scale, uint8_t* codes) {
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(FloatToInt8(x[i] * inverse_scale));
}

void RoundBf16(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; ++i) out[i] = FloatToBf16(x[i]);
}

float SquaredMisses(const float* x, int n, float inverse_scale) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) {
    const float y = x[i] * inverse_scale;
    const float miss = std::fma(y, -kKeepFourBits, y * kKeepFourBits);
    lanes[i % 16] = std::fma(miss, miss, lanes[i % 16]);
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace

const RowKernels kReferenceRows = {MaxMagnitude, QuantiseE4m3, QuantiseInt8, RoundBf16,
                                   SquaredMisses};

}  // namespace sluice::kernels::kv_store_internal
