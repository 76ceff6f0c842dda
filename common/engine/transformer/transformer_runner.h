// The forward pass of the transformer families on the CPU.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "device/thread_pool.h"
#include "engine/model_runner.h"
#include "engine/transformer/pass_context.h"
#include "engine/transformer/units.h"
#include "kernels/isa.h"
#include "model/kv_centre.h"
#include "model/model_files.h"
#include "model/weights.h"

namespace sluice::engine {

// What may change the bits of a row.
enum class Exactness {
  kStrict,  // nothing but the row, the weights, the path and the page layout
  kFast,    // also how a prompt is cut into chunks: long chunks of latent attention use its naive
            // form
};

struct TransformerOptions {
  kernels::IsaPath path = kernels::IsaPath::kReference;
  // Unset: FP8 of the model's kind of attention.
  std::optional<kernels::KvFormat> kv_format = std::nullopt;
  uint32_t page_tokens = 0;  // 0: 32, with latent attention 64
  Exactness exactness = Exactness::kStrict;
  model::BlockActivations activations = model::BlockActivations::kInt16;
  // What centred formats subtract; of the model's shape, or empty: then they subtract nothing.
  model::KvCentre centre = {};
  // Rows that memory is reserved for at start; larger batches make it grow.
  int64_t reserved_rows = 512;
  // For comparisons with Hugging Face only: kernels::MlaIndexQuery::torch_length.
  int64_t torch_length = 0;
};

// Per layer: RMSNorm, attention, RMSNorm, feed-forward; the kind of the two comes from the config.
// Each step is one ParallelFor over rows, weight panels or attention tasks, so each matrix is read
// once per pass whatever the batch.
class TransformerRunner final : public ModelRunner {
 public:
  // Packs the weights of `files` (not needed afterwards) and runs the probe of the numerics id.
  // `pool` must outlive the runner and is used only inside Create and Forward. Errors:
  // UNIMPLEMENTED when this processor lacks the path; INVALID_ARGUMENT when no page layout fits the
  // model; RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<std::unique_ptr<TransformerRunner>> Create(
      const model::ModelFiles& files, const TransformerOptions& options, device::ThreadPool& pool);

  const ModelInfo& info() const override { return info_; }
  absl::Status Forward(absl::Span<const Segment> segments, ForwardHooks* hooks,
                       absl::Span<float> logits) override;
  uint64_t weight_bytes_read() const override { return context_.weight_bytes_read; }

 private:
  TransformerRunner(const model::ModelConfig& config, const TransformerOptions& options,
                    std::unique_ptr<model::LoadedWeights> weights, kv::PageLayout layout,
                    device::ThreadPool& pool);

  // Attention and feed-forward of every layer.
  void MakeUnits();
  absl::Status CheckScratch() const;
  absl::Status CheckBatch(absl::Span<const Segment> segments, size_t logits) const;
  absl::StatusOr<Id128> ProbeLogits();
  void ProjectLogits(absl::Span<float> logits);

  const model::ModelConfig config_;
  const std::unique_ptr<model::LoadedWeights> weights_;
  const model::KvCentre centre_;
  ModelInfo info_;
  PassContext context_;
  std::unique_ptr<AttentionUnit> attention_;
  std::unique_ptr<FeedForwardUnit> dense_;
  std::unique_ptr<FeedForwardUnit> moe_;
  std::vector<FeedForwardUnit*> ffn_;  // of each layer
};

}  // namespace sluice::engine
