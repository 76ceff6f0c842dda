// What each instruction-set file provides to elementwise.cc. Internal to this folder; meanings in
// elementwise.h.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elementwise.h"

namespace sluice::kernels {

#define SLUICE_ELEMENTWISE_PATH(path)                                                    \
  namespace path {                                                                       \
  void RmsNorm(const float* x, const float* weight, float epsilon, int64_t n, float* y); \
  void SiluMultiply(const float* gate, const float* up, int64_t n, float* y);            \
  void AddInPlace(const float* y, int64_t n, float* x);                                  \
  void AddScaledInPlace(const float* y, float scale, int64_t n, float* x);               \
  void ApplyRope(RopeOrder order, const float* cos, const float* sin, int64_t pairs,     \
                 int64_t heads, int64_t head_stride, float* x);                          \
  void Softmax(const float* x, int64_t n, float* y);                                     \
  float LogSumExp(const float* x, int64_t n);                                            \
  int64_t ArgMax(const float* x, int64_t n);                                             \
  }

SLUICE_ELEMENTWISE_PATH(reference)
SLUICE_ELEMENTWISE_PATH(avx2)
SLUICE_ELEMENTWISE_PATH(avx512)

#undef SLUICE_ELEMENTWISE_PATH

}  // namespace sluice::kernels
