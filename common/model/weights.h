// A model's weights as kernels read them: packed into 16-row panels on huge pages, norms as
// float32.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
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

struct GqaWeights {
  MatrixGroup qkv;              // [heads | kv_heads | kv_heads] x head_dim outputs
  std::vector<float> qkv_bias;  // [outputs of qkv], empty without biases
  std::vector<float> q_norm;    // [head_dim], empty without q/k norm
  std::vector<float> k_norm;
  MatrixGroup o;  // [hidden]
};

// Picks the positions that latent attention attends: a score per position from small keys of its
// own.
struct IndexerWeights {
  MatrixGroup q;  // [index heads x index dim], from the normed row of q_lora_rank
  MatrixGroup
      key;  // [index dim | index heads]: the key and the heads' weights, from the hidden row
  std::vector<float> key_norm;  // [index dim] of a LayerNorm
  std::vector<float> key_norm_bias;
};

// Multi-head latent attention, absorbed: k_up takes a head's query to the latent, v_up the attended
// latent to the head's value.
struct MlaWeights {
  MatrixGroup down;            // [q_lora_rank | kv_lora_rank + rope]; without q_lora_rank q itself
  std::vector<float> q_norm;   // [q_lora_rank]
  std::vector<float> kv_norm;  // [kv_lora_rank]
  MatrixGroup q;               // [heads x head_dim], empty without q_lora_rank
  std::vector<kernels::PackedMatrix> k_up;  // of each head: [kv_lora_rank], from its nope part
  std::optional<IndexerWeights> indexer;    // of layers that compute one
  std::vector<kernels::PackedMatrix> v_up;  // of each head: [v_head_dim], from kv_lora_rank
  // For the naive form, if asked for: of each head [qk_nope_head_dim], from kv_lora_rank.
  std::vector<kernels::PackedMatrix> key_rows;
  MatrixGroup o;  // [hidden]
};

// down(silu(gate x) * up x).
struct FeedForwardWeights {
  MatrixGroup gate_up;  // [intermediate | intermediate]
  MatrixGroup down;     // [hidden]
};

// The same with gate and up apart, so that a panel of each makes a panel of the product.
struct ExpertWeights {
  kernels::PackedMatrix gate;  // [intermediate]
  kernels::PackedMatrix up;    // [intermediate]
  kernels::PackedMatrix down;  // [hidden]

  int64_t bytes() const { return gate.bytes() + up.bytes() + down.bytes(); }
};

struct MoeWeights {
  MatrixGroup router;                  // [experts]
  std::vector<float> correction_bias;  // [experts], empty without
  std::vector<ExpertWeights> experts;
  std::vector<ExpertWeights> shared;  // one or none
};

struct LayerWeights {
  std::vector<float> attn_norm;  // [hidden]
  std::variant<GqaWeights, MlaWeights> attention;
  std::vector<float> ffn_norm;  // [hidden]
  std::variant<FeedForwardWeights, MoeWeights> ffn;
};

// How activations are rounded to meet weights of block formats on the fast paths; others read them
// as they are.
enum class BlockActivations : uint8_t {
  kInt16,  // an error far below that of the weights
  kInt8,   // up to twice as fast where rows are many, an error as large as that of FP8 pages
};

// Immutable; any thread may read it. Independent of the files it came from.
class LoadedWeights {
 public:
  // Packs all weights for `path`, in parallel on `pool`. Takes about the tensors' bytes of memory.
  // RESOURCE_EXHAUSTED when memory is short. Cost: about 2 ns an element divided by the workers.
  // `naive_mla`: with MlaWeights::key_rows. `blocks`: for matrices of block formats.
  static absl::StatusOr<std::unique_ptr<LoadedWeights>> Load(
      const ModelFiles& files, kernels::IsaPath path, device::ThreadPool& pool,
      bool naive_mla = false, BlockActivations blocks = BlockActivations::kInt16);

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
  // An embedding that is not tied, as the file stores it; null data when tied.
  TensorView embedding_;
  device::HugePageArena arena_;
};

}  // namespace sluice::model
