#include "engine/transformer/ffn_dense.h"

#include <variant>

#include "kernels/elementwise/elementwise.h"

namespace sluice::engine {

FfnDense::FfnDense(PassContext& context, absl::Span<const model::LayerWeights> layers)
    : context_(context), layers_(layers) {
  for (const model::LayerWeights& layer : layers) {
    const auto* weights = std::get_if<model::FeedForwardWeights>(&layer.ffn);
    if (weights == nullptr) continue;
    ActivationKinds input;
    input.Add(weights->gate_up);
    ActivationKinds inner;
    inner.Add(weights->down);
    context.input.Declare(input, context.config.hidden);
    context.inner.Declare(inner, context.config.intermediate);
  }
  context.workspace.Add(&gate_up_, 2 * int64_t{context.config.intermediate});
}

ActivationKinds FfnDense::InputKinds(int layer) const {
  ActivationKinds kinds;
  kinds.Add(std::get<model::FeedForwardWeights>(layers_[static_cast<size_t>(layer)].ffn).gate_up);
  return kinds;
}

void FfnDense::Forward(int layer) {
  const auto& weights =
      std::get<model::FeedForwardWeights>(layers_[static_cast<size_t>(layer)].ffn);
  const int64_t width = context_.config.intermediate;
  context_.Multiply(weights.gate_up, context_.input, context_.rows(), gate_up_, 2 * width);
  ActivationKinds kinds;
  kinds.Add(weights.down);
  context_.ForEachRow([&](int64_t row, int) {
    float* const gate = gate_up_ + row * 2 * width;
    kernels::SiluMultiply(context_.path, gate, gate + width, width, gate);
    context_.inner.Prepare(context_.path, kinds, gate, width, row);
  });
  context_.Multiply(weights.down, context_.inner, context_.rows(), context_.y,
                    context_.config.hidden);
}

}  // namespace sluice::engine
