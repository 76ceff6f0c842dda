#include "kernels/attention/partial.h"

#include <cmath>

namespace sluice::kernels {

void ReferenceMerge(float* state, const float* partial, int dim) {
  const float max = state[0] > partial[0] ? state[0] : partial[0];
  const float old_weight = std::exp(state[0] - max);
  const float new_weight = std::exp(partial[0] - max);
  state[0] = max;
  state[1] = state[1] * old_weight + partial[1] * new_weight;
  for (int d = kPartialHead; d < kPartialHead + dim; ++d) {
    state[d] = state[d] * old_weight + partial[d] * new_weight;
  }
}

void ReferenceFinish(const float* state, int dim, float* out) {
  for (int d = 0; d < dim; ++d) out[d] = state[kPartialHead + d] / state[1];
}

}  // namespace sluice::kernels
