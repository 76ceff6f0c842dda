// The tensors of a model by what they are for: which exist, their shapes and their names in files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/config.h"

namespace sluice::model {

// H = hidden, D = head_dim. With MLA: R = rope part of a head, N = the rest, L = kv_lora_rank.
enum class TensorRole {
  kEmbedding,  // [vocabulary, H]
  kOutput,     // [vocabulary, H]; absent when embeddings are tied
  kFinalNorm,  // [H]
  // Once per layer.
  kAttnNorm,  // [H]
  kFfnNorm,   // [H]
  // GQA.
  kQ,      // [heads * D, H]; with MLA only when q_lora_rank is 0
  kK,      // [kv_heads * D, H]
  kV,      // [kv_heads * D, H]
  kQBias,  // [heads * D]
  kKBias,  // [kv_heads * D]
  kVBias,  // [kv_heads * D]
  kQNorm,  // [D]
  kKNorm,  // [D]
  kO,      // [H, heads * D]; with MLA [H, heads * v_head_dim]
  // MLA.
  kQA,       // [q_lora_rank, H]
  kQANorm,   // [q_lora_rank]
  kQB,       // [heads * (N + R), q_lora_rank]
  kKvA,      // [L + R, H]
  kKvANorm,  // [L]
  kKvB,      // [heads * (N + v_head_dim), L]
  // The indexer of a layer that computes one.
  kIndexQ,          // [index heads * index dim, q_lora_rank]
  kIndexK,          // [index dim, H]
  kIndexKNorm,      // [index dim]
  kIndexKNormBias,  // [index dim]
  kIndexWeights,    // [index heads, H]
  // Dense feed-forward.
  kGate,  // [intermediate, H]
  kUp,    // [intermediate, H]
  kDown,  // [H, intermediate]
  // Sparse feed-forward.
  kRouter,      // [experts, H]
  kRouterBias,  // [experts]
  kSharedGate,  // [shared_intermediate, H]
  kSharedUp,    // [shared_intermediate, H]
  kSharedDown,  // [H, shared_intermediate]
  // Once per layer and expert.
  kExpertGate,  // [expert intermediate, H]
  kExpertUp,    // [expert intermediate, H]
  kExpertDown,  // [H, expert intermediate]
};

// One tensor. `layer` and `expert` count only for roles that exist per layer and per expert.
struct TensorId {
  TensorRole role = TensorRole::kEmbedding;
  int32_t layer = 0;
  int32_t expert = 0;
};

// A vector is one row.
struct TensorShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

// Whether the model has this tensor.
bool TensorExists(TensorId id, const ModelConfig& config);
// Of a tensor that exists.
TensorShape TensorShapeOf(TensorRole role, const ModelConfig& config);

// "model.layers.3.mlp.up_proj.weight".
std::string HfTensorName(TensorId id);
// "blk.3.ffn_up.weight"; empty for roles that no GGUF family built here has.
std::string GgufTensorName(TensorId id);

// Which rows of a tensor are rotated: within each head of `head_rows` rows, `count` rows from
// `first` on. count is 0 for tensors that are not.
struct RotatedRows {
  int64_t head_rows = 0;
  int64_t first = 0;
  int64_t count = 0;
};
RotatedRows RotatedRowsOf(TensorRole role, const ModelConfig& config);

// Calls `visit` for every tensor of the model, in one fixed order, until it fails.
absl::Status ForEachTensor(const ModelConfig& config,
                           absl::FunctionRef<absl::Status(TensorId)> visit);

}  // namespace sluice::model
