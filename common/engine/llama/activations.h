// The memory that a pass computes in: activations of all rows of a batch, on huge pages.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "device/huge_page_arena.h"
#include "kernels/linear/linear.h"
#include "model/config.h"
#include "model/weights.h"

namespace sluice::engine {

// Row-major float32 matrices; all start at multiples of 64 bytes. Thread-compatible.
class Activations {
 public:
  // Looks at `weights` for the activation kinds that its matrices read.
  Activations(const model::ModelConfig& config, const model::LoadedWeights& weights);

  // Makes room for `rows` rows and `partial_floats` floats; contents are lost when it has to grow.
  // RESOURCE_EXHAUSTED when memory is short.
  absl::Status Reserve(int64_t rows, int64_t partial_floats);

  float* x = nullptr;          // [rows][hidden] the residual stream
  float* y = nullptr;          // [rows][hidden] what a block adds to it
  float* qkv = nullptr;        // [rows][q | k | v]
  float* attention = nullptr;  // [rows][q_width]
  float* gate_up = nullptr;    // [rows][gate | up]
  float* cosines = nullptr;    // [rows][head_dim / 2]
  float* sines = nullptr;      // [rows][head_dim / 2]
  float* partials = nullptr;   // attention of rows cut into pieces

  // Prepared rows of one kind, for whichever matrix group is next.
  uint8_t* prepared(kernels::ActivationKind kind) const {
    return prepared_[static_cast<size_t>(kind)];
  }

 private:
  static constexpr size_t kKinds = 2;
  struct Field {
    float** pointer;
    int64_t row_floats;
  };
  std::array<Field, 7> Fields();

  const model::ModelConfig config_;
  // Longest prepared row of each kind over all matrices; 0 when no matrix reads the kind.
  std::array<int64_t, kKinds> prepared_row_bytes_ = {};
  std::array<uint8_t*, kKinds> prepared_ = {};
  int64_t rows_ = 0;
  int64_t partial_floats_ = 0;
  device::HugePageArena arena_;
};

}  // namespace sluice::engine
