// Plain float32: the arithmetic that the fast paths are measured against.
#include <cstring>

#include "kernels/linear/paths.h"

namespace sluice::kernels::reference {
namespace {

// Sixteen interleaved partial sums, added up in order at the end: the order depends on k alone.
float Dot(const float* a, const float* b, int64_t k) {
  constexpr int kLanes = 16;
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i + lane < k; ++lane) partial[lane] += a[i + lane] * b[i + lane];
  float sum = 0.0f;
  for (float value : partial) sum += value;
  return sum;
}

}  // namespace

void Prepare(ActivationKind kind, const float* x, int64_t rows, int64_t k, int64_t x_stride,
             uint8_t* prepared) {
  const int64_t row_bytes = PreparedRowBytes(kind, k);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(prepared + r * row_bytes, x + r * x_stride, static_cast<size_t>(k) * sizeof(float));
  }
}

void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride) {
  const int64_t row_bytes = PreparedRowBytes(ActivationKind::kFloat32, matrix.k);
  const int64_t begin = panel_begin * kPanelRows;
  const int64_t end = panel_end * kPanelRows < matrix.n ? panel_end * kPanelRows : matrix.n;
  const float* weights = reinterpret_cast<const float*>(matrix.data);
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* x = reinterpret_cast<const float*>(prepared + r * row_bytes);
      y[r * y_stride + j] = Dot(x, weights + j * matrix.k, matrix.k);
    }
  }
}

}  // namespace sluice::kernels::reference
