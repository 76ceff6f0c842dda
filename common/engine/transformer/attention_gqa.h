// Attention with grouped query heads: fused QKV, biases, head norms, rotation, output projection.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "engine/transformer/attention_tasks.h"
#include "engine/transformer/pass_context.h"
#include "engine/transformer/units.h"
#include "kernels/attention/attention.h"
#include "kv/page_layout.h"
#include "model/kv_centre.h"

namespace sluice::engine {

// The pages of a model with this kind of attention.
kv::LayoutSpec GqaLayoutSpec(const model::ModelConfig& config, kernels::KvFormat format,
                             uint32_t page_tokens, const model::KvCentre& centre);

// `context`, `layers`, `layout` and `centre` must outlive it. The centre may be empty and is of no
// use to formats that are not centred.
class AttentionGqa final : public AttentionUnit {
 public:
  AttentionGqa(PassContext& context, absl::Span<const model::LayerWeights> layers,
               const kv::PageLayout& layout, const model::KvCentre& centre);

  ActivationKinds InputKinds(int layer) const override;
  size_t scratch_bytes() const override;
  absl::Status BeginPass() override;
  void Forward(int layer, absl::FunctionRef<void()> stored) override;

 private:
  const model::GqaWeights& weights(int layer) const;
  // The pages of a layer as kernels take them, with the layer's centre.
  kernels::KvLayerView View(int layer) const;
  // Bias, head norms, rotation and the store into the pages.
  void FinishQkvRow(const model::GqaWeights& gqa, const kernels::KvLayerView& view, int64_t row);
  void Attend(const kernels::KvLayerView& view);
  kernels::AttentionRun RunOf(int index) const;

  PassContext& context_;
  const absl::Span<const model::LayerWeights> layers_;
  const kv::PageLayout& layout_;
  const model::KvCentre& centre_;
  const std::vector<float> inverse_frequencies_;
  const int64_t qkv_width_;
  AttentionTasks tasks_;
  GrowingBuffer partials_memory_;
  float* partials_ = nullptr;  // attention of rows cut into pieces
  float* qkv_ = nullptr;       // [rows][q | k | v]
  float* attended_ = nullptr;  // [rows][q_width]
  float* cosines_ = nullptr;   // [rows][rotary_dim / 2]
  float* sines_ = nullptr;     // [rows][rotary_dim / 2]
};

}  // namespace sluice::engine
