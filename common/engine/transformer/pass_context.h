// What the units of a layer share: the kernels' path, the pool, the rows of the pass and the
// memory they compute in.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "device/thread_pool.h"
#include "engine/transformer/batch_plan.h"
#include "engine/transformer/workspace.h"
#include "kernels/isa.h"
#include "model/config.h"
#include "model/weights.h"

namespace sluice::engine {

// A chunk of work should take longer than this, or handing it out costs more than it saves.
inline constexpr int64_t kChunkNanoseconds = 1500;

// Nanoseconds of one panel for `rows` rows, by a rough model of one core: 40 GB/s of weights, 400
// operations per nanosecond, 650 with activations of 8 bits.
int64_t PanelNanoseconds(const kernels::PackedMatrix& matrix, int64_t rows);

// Owned by the runner, used on its loop. Rows are float32, row-major.
struct PassContext {
  PassContext(const model::ModelConfig& config_in, kernels::IsaPath path_in,
              device::ThreadPool& pool_in)
      : config(config_in), path(path_in), pool(pool_in) {}
  PassContext(const PassContext&) = delete;
  PassContext& operator=(const PassContext&) = delete;

  const model::ModelConfig& config;
  const kernels::IsaPath path;
  device::ThreadPool& pool;
  int64_t torch_length = 0;  // TransformerOptions
  bool fast = false;         // Exactness::kFast

  BatchPlan plan;
  Workspace workspace;
  float* x = nullptr;  // [rows][hidden] the residual stream
  float* y = nullptr;  // [rows][hidden] what a unit adds to it
  PreparedRows input;  // normed rows of x: what a unit reads
  PreparedRows inner;  // of a unit's own, between two of its matrices
  uint64_t weight_bytes_read = 0;
  // Matrices in the order in which a pass multiplies by them, where it is always the same; else
  // empty.
  std::vector<const model::MatrixGroup*> order;

  int64_t rows() const { return static_cast<int64_t>(plan.rows().size()); }

  // What Multiply will read next, for threads that wait (ThreadPool::ParallelFor); empty when it is
  // not known, or the rows are so many that arithmetic takes longer than memory.
  absl::Span<const uint8_t> ahead() const { return ahead_; }

  // Calls body(row, worker) for every row of the pass.
  void ForEachRow(absl::FunctionRef<void(int64_t row, int worker)> body);
  // Row by row: x += y (if `add`), then RMSNorm of x into `input`, in `kinds`.
  void NormRows(bool add, absl::Span<const float> norm, const ActivationKinds& kinds);
  // Angles of each row's position: cosines, sines [rows][inverse_frequencies].
  void RopeRows(absl::Span<const float> inverse_frequencies, float* cosines, float* sines);
  // out = rows x group; rows of `out` are `stride` floats apart.
  void Multiply(const model::MatrixGroup& group, const PreparedRows& prepared, int64_t count,
                float* out, int64_t stride);

 private:
  absl::Span<const uint8_t> MemoryAfter(const model::MatrixGroup& group);

  absl::Span<const uint8_t> ahead_;
  size_t at_ = 0;  // in `order`, of what Multiply is called with next
};

}  // namespace sluice::engine
