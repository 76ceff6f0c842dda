#include "engine/transformer/attention_tasks.h"

#include <algorithm>

#include "kernels/attention/attention.h"

namespace sluice::engine {
namespace {

constexpr int kRowBlock = 16;       // rows that share one expansion of a KV tile
constexpr int kTasksPerWorker = 4;  // enough for even work with stealing

int DivideUp(int a, int b) { return (a + b - 1) / b; }

}  // namespace

void AttentionTasks::Build(const BatchPlan& plan, const Options& options) {
  tasks_.clear();
  merges_.clear();
  partials_ = 0;
  int whole_tasks = 0;
  for (const BatchRun& run : plan.runs()) {
    whole_tasks += DivideUp(run.rows, kRowBlock) * options.kv_heads;
  }
  const int pieces = DivideUp(kTasksPerWorker * options.workers, std::max(whole_tasks, 1));
  for (size_t run = 0; run < plan.runs().size(); ++run) {
    if (options.left_out != nullptr && (*options.left_out)[run]) continue;
    const BatchRun& at = plan.runs()[run];
    const int64_t slots = std::min(
        kernels::SlotOfPosition(at.first_position, options.sink_rows) + 1, options.attended_max);
    AddTasks(static_cast<int>(run), at, options.kv_heads,
             static_cast<int>((slots - 1) / kernels::kAttentionTile) + 1,
             options.workers > 1 ? pieces : 1);
  }
}

void AttentionTasks::AddTasks(int index, const BatchRun& run, int kv_heads, int tiles, int pieces) {
  if (run.rows == 1 && pieces > 1 && tiles > 1) {
    const int step = DivideUp(tiles, std::min(pieces, tiles));
    for (int head = 0; head < kv_heads; ++head) {
      for (int tile = 0; tile < tiles; tile += step) {
        tasks_.push_back({index, 0, 1, head, tile, std::min(tile + step, tiles),
                          partials_ + static_cast<size_t>(tile)});
      }
      merges_.push_back({index, 0, head, partials_});
      partials_ += static_cast<size_t>(tiles);
    }
    return;
  }
  for (int row = 0; row < run.rows; row += kRowBlock) {
    for (int head = 0; head < kv_heads; ++head) {
      tasks_.push_back({index, row, std::min(row + kRowBlock, run.rows), head});
    }
  }
}

}  // namespace sluice::engine
