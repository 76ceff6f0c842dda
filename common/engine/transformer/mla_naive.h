// Latent attention in its naive form, for long prompt chunks under Exactness::kFast: keys and
// values of each head are made of the latents that the pages hold, then every query head attends
// its own. Fewer multiplications than the absorbed form, other roundings.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/transformer/pass_context.h"
#include "kernels/attention/attention.h"
#include "kernels/params.h"
#include "model/weights.h"

namespace sluice::engine {

// Thread-compatible; used by AttentionMla, layer by layer. `context` and `layers` must outlive it.
class MlaNaive {
 public:
  MlaNaive(PassContext& context, absl::Span<const model::LayerWeights> layers);

  // Decides for every run of the pass, if it may take any, and makes room.
  // RESOURCE_EXHAUSTED when memory is short.
  absl::Status BeginPass(bool may_take);
  // Of each run: whether this form computes it. It does where it needs fewer multiplications.
  const std::vector<bool>& takes() const { return takes_; }
  size_t scratch_bytes() const;

  // Attention of one run whose rows are in the pages, its own included. q: [rows][heads][head_dim]
  // after rotation, rows `q_stride` floats apart; values: [rows][heads][v_head_dim].
  void Attend(const model::MlaWeights& mla, const kernels::MlaLayerView& view, const BatchRun& run,
              const float* q, int64_t q_stride, float* values);

 private:
  bool Pays(const BatchRun& run) const;
  // Latents of positions [0, count) as inputs of the matrices, and their rotated keys.
  void Expand(const model::MlaWeights& mla, const kernels::MlaLayerView& view, const BatchRun& run,
              int64_t count);
  // Keys and values of a group of heads, into pages of float32.
  void MakePages(const model::MlaWeights& mla, int64_t first_head, int64_t count);
  void AttendGroup(const BatchRun& run, int64_t first_head, const float* q, int64_t q_stride,
                   float* values);

  PassContext& context_;
  const model::MlaConfig& mla_;
  const int64_t heads_;
  const int64_t dim_;    // head_dim of queries and keys
  const int64_t group_;  // heads whose keys and values are there at a time
  kernels::KvLayerView layer_;
  ActivationKinds kinds_;
  std::vector<bool> takes_;
  GrowingBuffer memory_;
  uint8_t* prepared_[ActivationKinds::kCount] = {};  // [positions] rows of each kind
  float* rope_ = nullptr;                            // [positions][rope]
  float* out_ = nullptr;                             // [rows][group][head_dim]
  std::vector<std::byte*> pages_;
};

}  // namespace sluice::engine
