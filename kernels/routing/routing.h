// Which experts a row goes to, in float32.
#pragma once

#include <cstdint>

namespace sluice::kernels {

struct RouterParams {
  int32_t experts = 0;
  int32_t topk = 0;
  // Experts lie in `groups` equal groups; only those of the best `topk_groups` can be chosen, where
  // a group counts the sum of its two best choices.
  int32_t groups = 1;
  int32_t topk_groups = 1;
  bool sigmoid = true;    // scores are sigmoid(logits), else softmax(logits)
  bool normalize = true;  // weights of the chosen are divided by their sum
  float scaling = 1.0f;   // and multiplied by this
};

struct RoutedExpert {
  int32_t expert = 0;
  float weight = 0;
};

// Floats of scratch that RouteRow needs.
int64_t RouterScratchFloats(const RouterParams& params);

// Chooses the `topk` experts with the largest score + bias, the lowest index on ties, best first;
// the weights come from the scores without bias. `bias` may be null. A NaN counts as the smallest
// choice; exactly topk different experts are always chosen.
// Needs: 1 <= topk <= experts of topk_groups groups; with groups > 1 at least two experts each.
// Threads: safe. Not split by path: every path routes alike.
void RouteRow(const RouterParams& params, const float* logits, const float* bias, float* scratch,
              RoutedExpert* out);

}  // namespace sluice::kernels
