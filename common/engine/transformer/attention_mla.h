// Multi-head latent attention in its absorbed form, for prompts as for decodes: every head attends
// the latents as the pages hold them, so a row's bits do not depend on how it was computed.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/transformer/attention_tasks.h"
#include "engine/transformer/indexer.h"
#include "engine/transformer/mla_naive.h"
#include "engine/transformer/pass_context.h"
#include "engine/transformer/units.h"
#include "kernels/mla/mla_attention.h"
#include "kv/page_layout.h"

namespace sluice::engine {

// The pages of a model with this kind of attention.
kv::LayoutSpec MlaLayoutSpec(const model::ModelConfig& config, kernels::KvFormat format,
                             uint32_t page_tokens);

// `context`, `layers` and `layout` must outlive it.
class AttentionMla final : public AttentionUnit {
 public:
  AttentionMla(PassContext& context, absl::Span<const model::LayerWeights> layers,
               const kv::PageLayout& layout);

  ActivationKinds InputKinds(int layer) const override;
  size_t scratch_bytes() const override;
  absl::Status BeginPass() override;
  void Forward(int layer, absl::FunctionRef<void()> stored) override;

 private:
  const model::MlaWeights& weights(int layer) const;
  // Norms and rotation of what the first matrices gave; the store into the pages.
  void FinishDownRow(const model::MlaWeights& mla, const ActivationKinds& query_kinds,
                     const kernels::MlaLayerView& view, int64_t row);
  // Rotation; the nope parts become the input of k_up.
  void FinishQueryRow(const model::MlaWeights& mla, int64_t row);
  // out(head) = rows of `prepared` for that head x matrices[head]; `out` gives where row 0 goes.
  // Rows of runs that the naive form takes are left out.
  void MultiplyHeads(absl::Span<const kernels::PackedMatrix> matrices, const PreparedRows& prepared,
                     absl::FunctionRef<float*(int64_t head)> out, int64_t stride);
  // The naive form for the runs that it takes, into values_.
  void AttendNaive(const model::MlaWeights& mla, const kernels::MlaLayerView& view);
  bool IsNaive(int run) const {
    return naive_ != nullptr && naive_->takes()[static_cast<size_t>(run)];
  }
  void Attend(const kernels::MlaLayerView& view);
  kernels::MlaRun RunOf(int index) const;
  // One past the heads of a group.
  int HeadsEnd(int group) const;
  // Where the partials of one row and group begin; `first_partial` is that of its tile 0.
  float* PartialsOf(size_t first_partial, const kernels::MlaLayerView& view) const;

  PassContext& context_;
  const absl::Span<const model::LayerWeights> layers_;
  const kv::PageLayout& layout_;
  const model::MlaConfig& mla_;
  const std::vector<float> inverse_frequencies_;
  const int64_t heads_;
  const int64_t down_width_;          // of q_lora_rank (or q) | latent | rope
  const int64_t cache_width_;         // latent + rope
  std::unique_ptr<Indexer> indexer_;  // null: every position is attended
  std::unique_ptr<MlaNaive> naive_;   // null unless Exactness::kFast
  // Rows [first, second) that the absorbed form computes, in order.
  std::vector<std::pair<int64_t, int64_t>> absorbed_rows_;
  AttentionTasks tasks_;
  GrowingBuffer partials_memory_;
  float* partials_ = nullptr;  // attention of rows cut into pieces
  float* down_ = nullptr;      // [rows][q_lora_rank or q | latent | rope]
  float* q_ = nullptr;         // [rows][heads][head_dim]; without q_lora_rank the front of down_
  float* absorbed_ = nullptr;  // [rows][heads][latent + rope]
  float* attended_ = nullptr;  // [rows][heads][latent]
  float* values_ = nullptr;    // [rows][heads][v_head_dim]
  float* cosines_ = nullptr;   // [rows][rope / 2]
  float* sines_ = nullptr;     // [rows][rope / 2]
  PreparedRows nope_;          // [heads][rows] inputs of k_up
  PreparedRows latents_;       // [heads][rows] inputs of v_up
};

}  // namespace sluice::engine
