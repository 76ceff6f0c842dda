#include "engine/llama/batch_plan.h"

#include <algorithm>

#include "kernels/attention/attention.h"

namespace sluice::engine {
namespace {

constexpr int kRowBlock = 16;       // rows that share one expansion of a KV tile
constexpr int kTasksPerWorker = 4;  // enough for even work with stealing

int DivideUp(int a, int b) { return (a + b - 1) / b; }

}  // namespace

void BatchPlan::Build(absl::Span<const Segment> segments, const kernels::KvLayerView& layer,
                      int workers) {
  pages_.clear();
  runs_.clear();
  rows_.clear();
  tasks_.clear();
  merges_.clear();
  logits_rows_.clear();
  partials_ = 0;
  pairs_ = 0;
  size_t pages = 0;
  for (const Segment& segment : segments) pages += segment.pages.size();
  pages_.reserve(pages);  // runs keep pointers into it
  int whole_tasks = 0;
  for (const Segment& segment : segments) {
    AddRun(segment);
    whole_tasks += DivideUp(runs_.back().rows, kRowBlock) * layer.kv_heads;
  }
  const int pieces = DivideUp(kTasksPerWorker * workers, std::max(whole_tasks, 1));
  for (size_t run = 0; run < runs_.size(); ++run) {
    AddTasks(static_cast<int>(run), layer, workers > 1 ? pieces : 1);
  }
}

void BatchPlan::AddRun(const Segment& segment) {
  BatchRun run;
  run.first_row = static_cast<int64_t>(rows_.size());
  run.rows = static_cast<int>(segment.tokens.size());
  run.first_position = segment.first_position;
  const size_t first_page = pages_.size();
  for (uint8_t* page : segment.pages) pages_.push_back(reinterpret_cast<std::byte*>(page));
  run.pages = pages_.data() + first_page;
  const int index = static_cast<int>(runs_.size());
  for (int row = 0; row < run.rows; ++row) {
    const bool wanted = segment.logits == LogitsWanted::kAll ||
                        (segment.logits == LogitsWanted::kLast && row + 1 == run.rows);
    if (wanted) logits_rows_.push_back(static_cast<int64_t>(rows_.size()));
    rows_.push_back(
        {index, row, segment.tokens[static_cast<size_t>(row)], run.first_position + row});
    pairs_ += run.first_position + row + 1;
  }
  runs_.push_back(run);
}

void BatchPlan::AddTasks(int index, const kernels::KvLayerView& layer, int pieces) {
  const BatchRun& run = runs_[static_cast<size_t>(index)];
  const int tiles = kernels::AttentionTiles(layer, run.first_position);
  if (run.rows == 1 && pieces > 1 && tiles > 1) {
    const int step = DivideUp(tiles, std::min(pieces, tiles));
    for (int head = 0; head < layer.kv_heads; ++head) {
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
    for (int head = 0; head < layer.kv_heads; ++head) {
      tasks_.push_back({index, row, std::min(row + kRowBlock, run.rows), head});
    }
  }
}

int64_t BatchPlan::pairs_per_task() const {
  return tasks_.empty() ? 0 : pairs_ / static_cast<int64_t>(tasks_.size()) + 1;
}

}  // namespace sluice::engine
