// What attention over a range of positions leaves behind, and how two ranges become one. Private to
// the attention kernels.
//
// A partial is [maximum of the scores, sum of exp(score - maximum), .., acc[dim]] with
// acc = sum of exp(score - maximum) * value, float32.
#pragma once

#include <cstdint>

namespace sluice::kernels {

constexpr int kPartialHead = 16;  // floats before acc: [0] maximum, [1] sum

static inline int64_t PartialFloats(int dim) { return kPartialHead + dim; }

// state = state merged with the next partial; the order of the ranges decides the bits.
void ReferenceMerge(float* state, const float* partial, int dim);
// out = acc / sum, [dim].
void ReferenceFinish(const float* state, int dim, float* out);

}  // namespace sluice::kernels
