#include "engine/transformer/batch_plan.h"

namespace sluice::engine {

void BatchPlan::Build(absl::Span<const Segment> segments) {
  pages_.clear();
  runs_.clear();
  rows_.clear();
  logits_rows_.clear();
  pairs_ = 0;
  size_t pages = 0;
  for (const Segment& segment : segments) pages += segment.pages.size();
  pages_.reserve(pages);  // runs keep pointers into it
  for (const Segment& segment : segments) AddRun(segment);
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

}  // namespace sluice::engine
