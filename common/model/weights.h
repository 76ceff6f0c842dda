// A model's weights as kernels read them: packed into 16-row panels on huge pages, norms as
// float32.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/huge_page_arena.h"
#include "device/thread_pool.h"
#include "kernels/isa.h"
#include "kernels/linear/linear.h"
#include "model/model_files.h"

namespace sluice::model {

// Matrices with the same input whose outputs lie side by side. Neighbours of equal weight format
// are one packed matrix, so usually there is one part.
struct MatrixGroup {
  struct Part {
    kernels::PackedMatrix matrix;
    int64_t column = 0;  // of the group's output where the part's begins
  };
  std::vector<Part> parts;
  int64_t n = 0;  // output features of all parts
  int64_t k = 0;

  int64_t panels() const;
  int64_t bytes() const;
};

struct LayerWeights {
  std::vector<float> attn_norm;  // [hidden]
  MatrixGroup qkv;               // [heads | kv_heads | kv_heads] x head_dim outputs
  std::vector<float> q_norm;     // [head_dim], empty without q/k norm
  std::vector<float> k_norm;
  MatrixGroup o;                // [hidden]
  std::vector<float> ffn_norm;  // [hidden]
  MatrixGroup gate_up;          // [intermediate | intermediate]
  MatrixGroup down;             // [hidden]
};

// Immutable; any thread may read it. Independent of the files it came from.
class LoadedWeights {
 public:
  // Packs all weights for `path`, in parallel on `pool`. Takes about the tensors' bytes of memory.
  // RESOURCE_EXHAUSTED when memory is short. Cost: about 2 ns an element divided by the workers.
  static absl::StatusOr<std::unique_ptr<LoadedWeights>> Load(const ModelFiles& files,
                                                             kernels::IsaPath path,
                                                             device::ThreadPool& pool);

  absl::Span<const LayerWeights> layers() const { return layers_; }
  absl::Span<const float> final_norm() const { return final_norm_; }
  const MatrixGroup& output() const { return output_; }
  // Writes the embedding of `token` (hidden floats). Tied embeddings are read from the packed
  // output matrix.
  void Embedding(int32_t token, float* out) const;
  // Bytes of everything packed.
  uint64_t packed_bytes() const { return arena_.allocated_bytes(); }

 private:
  friend class WeightLoader;
  LoadedWeights() = default;

  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  MatrixGroup output_;
  // Rows of an embedding that is not tied, as the file stores them; null data when tied.
  kernels::WeightFormat embedding_format_ = kernels::WeightFormat::kF32;
  int64_t hidden_ = 0;
  const uint8_t* embedding_rows_ = nullptr;
  device::HugePageArena arena_;
};

}  // namespace sluice::model
