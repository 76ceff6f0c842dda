// One pass's work, laid out once and used by every layer: rows, page tables and attention tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/model_runner.h"
#include "kernels/params.h"

namespace sluice::engine {

// Rows of all segments follow each other in one matrix; a run is the rows of one segment.
struct BatchRun {
  int64_t first_row = 0;  // in the matrix
  int rows = 0;
  int64_t first_position = 0;
  std::byte* const* pages = nullptr;
};

struct BatchRow {
  int run = 0;
  int row = 0;  // within the run
  TokenId token = 0;
  int64_t position = 0;
};

// Rows [row_begin, row_end) of a run and one KV head. With pieces > 0 it is one row's KV tiles
// [tile_begin, tile_end) instead, written as partials that a MergeTask joins.
struct AttentionTask {
  int run = 0;
  int row_begin = 0;
  int row_end = 0;
  int kv_head = 0;
  int tile_begin = 0;
  int tile_end = 0;          // 0: the whole of the rows
  size_t first_partial = 0;  // in units of one partial
};

struct MergeTask {
  int run = 0;
  int row = 0;
  int kv_head = 0;
  size_t first_partial = 0;
};

// Thread-compatible. Vectors keep their memory from pass to pass.
class BatchPlan {
 public:
  // Lays out `segments` (whose pages must live until the pass ends) for `workers` threads. Rows of
  // one segment are cut into blocks, and when there are fewer tasks than workers can share, long
  // single rows into ranges of KV tiles; how they are cut changes no result.
  void Build(absl::Span<const Segment> segments, const kernels::KvLayerView& layer, int workers);

  absl::Span<const BatchRun> runs() const { return runs_; }
  absl::Span<const BatchRow> rows() const { return rows_; }
  absl::Span<const AttentionTask> tasks() const { return tasks_; }
  absl::Span<const MergeTask> merges() const { return merges_; }
  size_t partials() const { return partials_; }
  // Matrix rows whose logits are wanted, in order.
  absl::Span<const int64_t> logits_rows() const { return logits_rows_; }
  // Mean number of (query row, position) pairs of a task: what a task costs, up to a factor.
  int64_t pairs_per_task() const;

 private:
  void AddRun(const Segment& segment);
  void AddTasks(int run, const kernels::KvLayerView& layer, int pieces);

  std::vector<std::byte*> pages_;
  std::vector<BatchRun> runs_;
  std::vector<BatchRow> rows_;
  std::vector<AttentionTask> tasks_;
  std::vector<MergeTask> merges_;
  std::vector<int64_t> logits_rows_;
  size_t partials_ = 0;
  int64_t pairs_ = 0;
};

}  // namespace sluice::engine
