// The attention of one pass as tasks of even size for the workers; used by every layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "engine/transformer/batch_plan.h"

namespace sluice::engine {

// Rows [row_begin, row_end) of a run and one KV head (latent attention: one group of heads). With
// tile_end > 0 it is one row's KV tiles [tile_begin, tile_end) instead, written as partials that a
// MergeTask joins.
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
class AttentionTasks {
 public:
  // Cuts the rows of each run into blocks, per KV head, and, when there are fewer tasks than
  // `workers` can share, long single rows into ranges of KV tiles (kAttentionTile slots); how they
  // are cut changes no result.
  struct Options {
    int kv_heads = 0;
    int sink_rows = 0;
    int workers = 0;
    int64_t attended_max = std::numeric_limits<int64_t>::max();  // slots that a row attends
    const std::vector<bool>* left_out = nullptr;  // runs that get no task; null: none
  };
  void Build(const BatchPlan& plan, const Options& options);

  absl::Span<const AttentionTask> tasks() const { return tasks_; }
  absl::Span<const MergeTask> merges() const { return merges_; }
  size_t partials() const { return partials_; }

 private:
  void AddTasks(int index, const BatchRun& run, int kv_heads, int tiles, int pieces);

  std::vector<AttentionTask> tasks_;
  std::vector<MergeTask> merges_;
  size_t partials_ = 0;
};

}  // namespace sluice::engine
