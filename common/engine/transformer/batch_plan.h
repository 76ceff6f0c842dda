// The rows of one pass, laid out once and used by every layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/model_runner.h"

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

// Thread-compatible. Vectors keep their memory from pass to pass.
class BatchPlan {
 public:
  // Lays out `segments`, whose pages must live until the pass ends.
  void Build(absl::Span<const Segment> segments);

  absl::Span<const BatchRun> runs() const { return runs_; }
  absl::Span<const BatchRow> rows() const { return rows_; }
  // Matrix rows whose logits are wanted, in order.
  absl::Span<const int64_t> logits_rows() const { return logits_rows_; }
  // (query row, position) pairs of causal attention.
  int64_t pairs() const { return pairs_; }

 private:
  void AddRun(const Segment& segment);

  std::vector<std::byte*> pages_;
  std::vector<BatchRun> runs_;
  std::vector<BatchRow> rows_;
  std::vector<int64_t> logits_rows_;
  int64_t pairs_ = 0;
};

}  // namespace sluice::engine
