// The memory that a pass computes in: buffers of so much a row, on huge pages, declared once by
// those who use them and grown for larger batches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/huge_page_arena.h"
#include "kernels/linear/linear.h"
#include "model/weights.h"

namespace sluice::engine {

// Thread-compatible.
class Workspace {
 public:
  // Declares a buffer of `row_bytes` for each row. It lies at `*pointer`, 64-byte aligned, from the
  // next Reserve on; `pointer` must stay valid.
  void Add(uint8_t** pointer, int64_t row_bytes) {
    buffers_.push_back({pointer, nullptr, row_bytes});
  }
  void Add(float** pointer, int64_t row_floats) {
    buffers_.push_back({nullptr, pointer, row_floats * static_cast<int64_t>(sizeof(float))});
  }

  // Makes room for `rows` rows; contents are lost when it has to grow. RESOURCE_EXHAUSTED when
  // memory is short.
  absl::Status Reserve(int64_t rows);

 private:
  struct Buffer {
    uint8_t** bytes;  // one of the two
    float** floats;
    int64_t row_bytes;
  };
  std::vector<Buffer> buffers_;
  int64_t rows_ = 0;
  device::HugePageArena arena_;
};

// One buffer that grows, for sizes that do not follow the rows. Thread-compatible.
class GrowingBuffer {
 public:
  // At least `bytes` bytes; contents are lost when it has to grow. RESOURCE_EXHAUSTED when memory
  // is short.
  absl::StatusOr<std::byte*> Reserve(size_t bytes);

 private:
  device::HugePageArena arena_;
};

// The activation kinds in which some matrices read their input.
class ActivationKinds {
 public:
  static constexpr size_t kCount = std::size(kernels::kAllActivationKinds);
  void Add(const kernels::PackedMatrix& matrix) {
    wanted_[static_cast<size_t>(matrix.activations)] = true;
  }
  void Add(const model::MatrixGroup& group) {
    for (const model::MatrixGroup::Part& part : group.parts) Add(part.matrix);
  }
  void Add(const ActivationKinds& other) {
    for (size_t i = 0; i < kCount; ++i) wanted_[i] |= other.wanted_[i];
  }
  bool Has(kernels::ActivationKind kind) const { return wanted_[static_cast<size_t>(kind)]; }

 private:
  std::array<bool, kCount> wanted_ = {};
};

// Rows converted for the kernels, a copy for each kind: the input of whichever matrices are next.
class PreparedRows {
 public:
  // Declares that rows of `k` elements will be prepared in `kinds`. Before AddTo.
  void Declare(const ActivationKinds& kinds, int64_t k);
  // `per_row`: prepared rows for each row of the workspace.
  void AddTo(Workspace* workspace, int64_t per_row = 1);

  // Row `i` of rows of `k` elements.
  uint8_t* Row(kernels::ActivationKind kind, int64_t k, int64_t i) const {
    return memory_[static_cast<size_t>(kind)] + i * kernels::PreparedRowBytes(kind, k);
  }
  // Converts `x` [k] to row `i`, in each of `kinds`.
  void Prepare(kernels::IsaPath path, const ActivationKinds& kinds, const float* x, int64_t k,
               int64_t i) const;

 private:
  // Longest row of each kind; 0 when no matrix reads it.
  std::array<int64_t, ActivationKinds::kCount> row_bytes_ = {};
  std::array<uint8_t*, ActivationKinds::kCount> memory_ = {};
};

}  // namespace sluice::engine
