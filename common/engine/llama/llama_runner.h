// The transformer of the families llama and qwen3 on the CPU.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "device/thread_pool.h"
#include "engine/llama/activations.h"
#include "engine/llama/batch_plan.h"
#include "engine/model_runner.h"
#include "kernels/isa.h"
#include "model/model_files.h"
#include "model/weights.h"

namespace sluice::engine {

struct LlamaRunnerOptions {
  kernels::IsaPath path = kernels::IsaPath::kReference;
  kernels::KvFormat kv_format = kernels::KvFormat::kGqaFp8;
  uint32_t page_tokens = 32;
  // Rows that memory is reserved for at start; larger batches make it grow.
  int64_t reserved_rows = 512;
};

// Per layer: RMSNorm, fused QKV, head norms (Qwen3), rotation, keys and values into the pages,
// attention over the pages, output projection, RMSNorm, SwiGLU. Each step is one ParallelFor over
// rows, weight panels or attention tasks, so each matrix is read once per pass whatever the batch.
class LlamaRunner final : public ModelRunner {
 public:
  // Packs the weights of `files` (not needed afterwards) and runs the probe of the numerics id.
  // `pool` must outlive the runner and is used only inside Create and Forward. Errors:
  // UNIMPLEMENTED when this processor lacks the path; INVALID_ARGUMENT when no page layout fits the
  // model; RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<std::unique_ptr<LlamaRunner>> Create(const model::ModelFiles& files,
                                                             const LlamaRunnerOptions& options,
                                                             device::ThreadPool& pool);

  const ModelInfo& info() const override { return info_; }
  absl::Status Forward(absl::Span<const Segment> segments, ForwardHooks* hooks,
                       absl::Span<float> logits) override;
  uint64_t weight_bytes_read() const override { return weight_bytes_read_; }

 private:
  LlamaRunner(const model::ModelConfig& config, const LlamaRunnerOptions& options,
              std::unique_ptr<model::LoadedWeights> weights, device::ThreadPool& pool);

  absl::Status CheckBatch(absl::Span<const Segment> segments, size_t logits) const;
  absl::StatusOr<Id128> ProbeLogits();

  void Embed();
  // attention and ffn of one layer. `first`: nothing waits in y to be added to x.
  void AttentionBlock(int layer, bool first, ForwardHooks* hooks);
  void FeedForwardBlock(int layer);
  void ProjectLogits(absl::Span<float> logits);

  // Row by row: x += y (if `add`), then RMSNorm of x, prepared for `group`.
  void NormRows(bool add, absl::Span<const float> norm, const model::MatrixGroup& group);
  // Prepares rows of `input` for `group`.
  void PrepareRow(const model::MatrixGroup& group, const float* input, int64_t row);
  // Head norms, rotation and the store into the pages.
  void FinishQkvRow(const model::LayerWeights& weights, const kernels::KvLayerView& view,
                    int64_t row);
  void Attend(const kernels::KvLayerView& view);
  // y = prepared rows x group; y rows are `stride` floats apart.
  void Multiply(const model::MatrixGroup& group, int64_t rows, float* y, int64_t stride);

  const model::ModelConfig config_;
  const LlamaRunnerOptions options_;
  const std::unique_ptr<model::LoadedWeights> weights_;
  device::ThreadPool& pool_;
  const std::vector<float> inverse_frequencies_;
  const int64_t qkv_width_;
  ModelInfo info_;
  BatchPlan plan_;
  Activations act_;
  uint64_t weight_bytes_read_ = 0;
};

}  // namespace sluice::engine
