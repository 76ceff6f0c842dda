#include "kernels/routing/routing.h"

#include <cmath>
#include <limits>

namespace sluice::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void Score(const RouterParams& params, const float* logits, float* scores) {
  if (params.sigmoid) {
    for (int32_t e = 0; e < params.experts; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  float largest = kNever;
  for (int32_t e = 0; e < params.experts; ++e) largest = logits[e] > largest ? logits[e] : largest;
  float sum = 0;
  for (int32_t e = 0; e < params.experts; ++e) {
    scores[e] = std::exp(logits[e] - largest);
    sum += scores[e];
  }
  for (int32_t e = 0; e < params.experts; ++e) scores[e] /= sum;
}

// Index of the largest of `count` values that are not NaN, the lowest on ties. There is one.
int32_t Largest(const float* values, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) continue;
    if (best < 0 || values[i] > values[best]) best = i;
  }
  return best;
}

// Sum of the two best choices of a group.
float GroupScore(const float* choices, int32_t count) {
  float best = kNever;
  float second = kNever;
  for (int32_t i = 0; i < count; ++i) {
    if (choices[i] > best) {
      second = best;
      best = choices[i];
    } else if (choices[i] > second) {
      second = choices[i];
    }
  }
  const float sum = best + second;
  return std::isnan(sum) ? kNever : sum;
}

// Takes the experts of all but the best groups out of the choice.
void KeepBestGroups(const RouterParams& params, float* choices, float* group_scores) {
  const int32_t size = params.experts / params.groups;
  for (int32_t g = 0; g < params.groups; ++g) {
    group_scores[g] = GroupScore(choices + g * size, size);
  }
  constexpr float kKept = std::numeric_limits<float>::quiet_NaN();
  for (int32_t i = 0; i < params.topk_groups; ++i) {
    group_scores[Largest(group_scores, params.groups)] = kKept;
  }
  for (int32_t g = 0; g < params.groups; ++g) {
    if (std::isnan(group_scores[g])) continue;
    // NaN is out: Largest passes over it.
    for (int32_t i = 0; i < size; ++i) choices[g * size + i] = kKept;
  }
}

}  // namespace

int64_t RouterScratchFloats(const RouterParams& params) {
  return 2 * int64_t{params.experts} + params.groups;
}

void RouteRow(const RouterParams& params, const float* logits, const float* bias, float* scratch,
              RoutedExpert* out) {
  float* const scores = scratch;
  float* const choices = scratch + params.experts;
  float* const group_scores = choices + params.experts;
  Score(params, logits, scores);
  for (int32_t e = 0; e < params.experts; ++e) {
    choices[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
    if (std::isnan(choices[e])) choices[e] = kNever;
  }
  if (params.groups > 1) KeepBestGroups(params, choices, group_scores);
  float sum = 0;
  for (int32_t i = 0; i < params.topk; ++i) {
    const int32_t best = Largest(choices, params.experts);
    out[i] = {best, scores[best]};
    choices[best] = std::numeric_limits<float>::quiet_NaN();
    sum += scores[best];
  }
  // Sigmoids can all vanish; the tiny term keeps the quotient finite.
  const float divisor = params.sigmoid ? sum + 1e-20f : sum;
  for (int32_t i = 0; i < params.topk; ++i) {
    if (params.normalize) out[i].weight /= divisor;
    out[i].weight *= params.scaling;
  }
}

}  // namespace sluice::kernels
