// Plain scalar float32.
#include <cmath>
#include <limits>

#include "kernels/elementwise/paths.h"

namespace sluice::kernels::reference {
namespace {

float Max(const float* x, int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

}  // namespace

void RmsNorm(const float* x, const float* weight, float epsilon, int64_t n, float* y) {
  // Sixteen interleaved partial sums keep the error of long rows small.
  float partial[16] = {};
  for (int64_t i = 0; i < n; ++i) partial[i % 16] += x[i] * x[i];
  float sum = 0.0f;
  for (float value : partial) sum += value;
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(n) + epsilon);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * inverse * weight[i];
}

void SiluMultiply(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void AddInPlace(const float* y, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void AddScaledInPlace(const float* y, float scale, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] += scale * y[i];
}

void ApplyRope(RopeOrder order, const float* cos, const float* sin, int64_t pairs, int64_t heads,
               int64_t head_stride, float* x) {
  const bool split = order == RopeOrder::kHalfSplit;
  for (int64_t h = 0; h < heads; ++h) {
    float* head = x + h * head_stride;
    for (int64_t i = 0; i < pairs; ++i) {
      float& first = head[split ? i : 2 * i];
      float& second = head[split ? i + pairs : 2 * i + 1];
      const float a = first;
      const float b = second;
      first = a * cos[i] - b * sin[i];
      second = b * cos[i] + a * sin[i];
    }
  }
}

void Softmax(const float* x, int64_t n, float* y) {
  const float largest = Max(x, n);
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = std::exp(x[i] - largest);
    sum += y[i];
  }
  for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

float LogSumExp(const float* x, int64_t n) {
  const float largest = Max(x, n);
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

int64_t ArgMax(const float* x, int64_t n) {
  const float largest = Max(x, n);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == largest) return i;
  }
  return 0;
}

}  // namespace sluice::kernels::reference
