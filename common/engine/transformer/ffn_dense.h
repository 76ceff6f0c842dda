// Dense feed-forward: down(silu(gate x) * up x).
#pragma once

#include "absl/types/span.h"
#include "engine/transformer/pass_context.h"
#include "engine/transformer/units.h"

namespace sluice::engine {

// `context` and `layers` must outlive it; serves the layers whose weights are FeedForwardWeights.
class FfnDense final : public FeedForwardUnit {
 public:
  FfnDense(PassContext& context, absl::Span<const model::LayerWeights> layers);

  ActivationKinds InputKinds(int layer) const override;
  void Forward(int layer) override;

 private:
  PassContext& context_;
  const absl::Span<const model::LayerWeights> layers_;
  float* gate_up_ = nullptr;  // [rows][gate | up]
};

}  // namespace sluice::engine
