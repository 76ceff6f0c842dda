// Elementwise operations and row reductions in float32, one row per call.
//
// Exactness: a reduction's order depends on the length of the row alone. kAvx2 and kAvx512 give the
// same bits; kReference is plain scalar code. Threads: every function is thread-safe and allocates
// nothing. Inputs need no alignment; `y` may be one of the inputs where the comment says so. All
// lengths are >= 0 and may be odd.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace sluice::kernels {

// y[i] = x[i] * weight[i] / sqrt(mean(x^2) + epsilon). y may be x. n > 0.
void RmsNorm(IsaPath path, const float* x, const float* weight, float epsilon, int64_t n, float* y);

// y[i] = silu(gate[i]) * up[i], silu(g) = g / (1 + exp(-g)). y may be gate or up.
void SiluMultiply(IsaPath path, const float* gate, const float* up, int64_t n, float* y);

// x[i] += y[i].
void AddInPlace(IsaPath path, const float* y, int64_t n, float* x);

// x[i] += scale * y[i], each product rounded before the sum.
void AddScaledInPlace(IsaPath path, const float* y, float scale, int64_t n, float* x);

// How the two elements of a rotated pair lie in a head.
enum class RopeOrder : uint8_t {
  kHalfSplit,    // elements i and i + width / 2
  kInterleaved,  // elements 2i and 2i + 1
};

// cos and sin of the angles of one position: angle i = position * inv_freq[i], product and angle in
// float32, times `magnitude` (YaRN's attention factor; 1 otherwise). cos, sin: [pairs]. Not split
// by path: every path rotates by the same numbers. Cost: about 30 ns a pair.
void RopeAngles(const float* inv_freq, int64_t pairs, int64_t position, float magnitude, float* cos,
                float* sin);

// Rotates the first 2 * pairs elements of each of `heads` heads in place; the rest of a head is
// left alone. Shapes: x: head h at x + h * head_stride; cos, sin [pairs] from RopeAngles. Needs: 2
// * pairs <= head width.
void ApplyRope(IsaPath path, RopeOrder order, const float* cos, const float* sin, int64_t pairs,
               int64_t heads, int64_t head_stride, float* x);

// y[i] = exp(x[i] - max(x)) / sum. y may be x. n > 0.
void Softmax(IsaPath path, const float* x, int64_t n, float* y);

// log(sum(exp(x[i]))), so that log-probability i is x[i] minus it. n > 0.
float LogSumExp(IsaPath path, const float* x, int64_t n);

// The index of the largest value, the lowest on ties; NaN is never the largest. 0 if all are NaN. n
// > 0.
int64_t ArgMax(IsaPath path, const float* x, int64_t n);

}  // namespace sluice::kernels
