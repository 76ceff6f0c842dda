#include "kernels/elementwise/elementwise.h"

#include <cmath>

#include "base/check.h"
#include "kernels/elementwise/paths.h"

namespace sluice::kernels {
namespace {

// Calls the function of `path` out of the three given.
template <typename Function, typename... Arguments>
auto Call(IsaPath path, Function* reference, Function* avx2, Function* avx512,
          Arguments... arguments) {
  switch (path) {
    case IsaPath::kReference:
      break;
    case IsaPath::kAvx2:
      return avx2(arguments...);
    case IsaPath::kAvx512:
      return avx512(arguments...);
  }
  return reference(arguments...);
}

}  // namespace

void RmsNorm(IsaPath path, const float* x, const float* weight, float epsilon, int64_t n,
             float* y) {
  SLUICE_DCHECK(n > 0);
  Call(path, reference::RmsNorm, avx2::RmsNorm, avx512::RmsNorm, x, weight, epsilon, n, y);
}

void SiluMultiply(IsaPath path, const float* gate, const float* up, int64_t n, float* y) {
  Call(path, reference::SiluMultiply, avx2::SiluMultiply, avx512::SiluMultiply, gate, up, n, y);
}

void AddInPlace(IsaPath path, const float* y, int64_t n, float* x) {
  Call(path, reference::AddInPlace, avx2::AddInPlace, avx512::AddInPlace, y, n, x);
}

void AddScaledInPlace(IsaPath path, const float* y, float scale, int64_t n, float* x) {
  Call(path, reference::AddScaledInPlace, avx2::AddScaledInPlace, avx512::AddScaledInPlace, y,
       scale, n, x);
}

void RopeAngles(const float* inv_freq, int64_t pairs, int64_t position, float magnitude, float* cos,
                float* sin) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    cos[i] = std::cos(angle) * magnitude;
    sin[i] = std::sin(angle) * magnitude;
  }
}

void ApplyRope(IsaPath path, RopeOrder order, const float* cos, const float* sin, int64_t pairs,
               int64_t heads, int64_t head_stride, float* x) {
  SLUICE_DCHECK(heads <= 1 || 2 * pairs <= head_stride);
  Call(path, reference::ApplyRope, avx2::ApplyRope, avx512::ApplyRope, order, cos, sin, pairs,
       heads, head_stride, x);
}

void Softmax(IsaPath path, const float* x, int64_t n, float* y) {
  SLUICE_DCHECK(n > 0);
  Call(path, reference::Softmax, avx2::Softmax, avx512::Softmax, x, n, y);
}

float LogSumExp(IsaPath path, const float* x, int64_t n) {
  SLUICE_DCHECK(n > 0);
  return Call(path, reference::LogSumExp, avx2::LogSumExp, avx512::LogSumExp, x, n);
}

int64_t ArgMax(IsaPath path, const float* x, int64_t n) {
  SLUICE_DCHECK(n > 0);
  return Call(path, reference::ArgMax, avx2::ArgMax, avx512::ArgMax, x, n);
}

}  // namespace sluice::kernels
