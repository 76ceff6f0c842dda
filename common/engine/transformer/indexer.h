// Which positions latent attention attends: index keys beside the latents, a score for each, the
// best `topk` of them. Layers without an indexer reuse the picks of the last one that has.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/transformer/pass_context.h"
#include "kernels/mla/mla_attention.h"
#include "kv/page_layout.h"

namespace sluice::engine {

// `context`, `layers` and `layout` must outlive it. Used by AttentionMla, layer by layer.
class Indexer {
 public:
  Indexer(PassContext& context, absl::Span<const model::LayerWeights> layers,
          const kv::PageLayout& layout);

  // Kinds in which the layer's own matrices read the hidden row, and the normed row of q_lora_rank.
  ActivationKinds InputKinds(int layer) const;
  ActivationKinds QueryKinds(int layer) const;
  size_t scratch_bytes() const;
  // Room for scores of the longest row of the pass. RESOURCE_EXHAUSTED when memory is short.
  absl::Status BeginPass();
  // Whether some row of the pass attends less than all before it.
  bool picks() const { return positions_ > dsa_.topk; }
  // Writes the index keys of all rows to their pages; reads context.input. cosines, sines:
  // [rows][rope / 2]. Nothing to do in layers without an indexer.
  void StoreKeys(int layer, const float* cosines, const float* sines);
  // Picks for all rows, whose keys are stored, when there are any; reads context.inner.
  void Pick(int layer, const float* cosines, const float* sines);
  // Lets the rows of a run attend their picks.
  void Attach(const BatchRun& run, kernels::MlaRun* out) const;

 private:
  const model::IndexerWeights* weights(int layer) const;
  // Positions up to the row's own.
  int64_t PositionsOf(int64_t row) const;
  float* ScoresOf(int buffer) const;
  // Scores of positions [begin, end) with the scratch of `worker`; none when all are attended.
  void ScoreRow(const kernels::MlaLayerView& view, int64_t row, int64_t begin, int64_t end,
                float* scores, int worker);
  void PickRow(int64_t row, float* scores);

  PassContext& context_;
  const absl::Span<const model::LayerWeights> layers_;
  const kv::PageLayout& layout_;
  const model::DsaConfig& dsa_;
  const int64_t pairs_;
  const int64_t key_width_;            // of index dim | index heads
  std::vector<GrowingBuffer> memory_;  // of each worker: scores and an order of positions
  std::vector<std::byte*> scores_;
  int64_t positions_ = 0;             // of the longest row of the pass
  int64_t length_ = 0;                // of scores and order
  float* key_ = nullptr;              // [rows][index dim | index heads]
  float* q_ = nullptr;                // [rows][index heads][index dim]
  uint8_t* picks_ = nullptr;          // [rows][topk] int32
  std::vector<int32_t> pick_counts_;  // [rows]
};

}  // namespace sluice::engine
