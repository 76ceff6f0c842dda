#include "model/tensor_roles.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::model {
namespace {

enum class Scope { kModel, kLayer, kExpert };

struct RoleRow {
  TensorRole role;
  Scope scope;
  absl::string_view hf;    // after "model.layers.N." or "model.layers.N.mlp.experts.E."
  absl::string_view gguf;  // after "blk.N."
};
constexpr RoleRow kRoles[] = {
    {TensorRole::kEmbedding, Scope::kModel, "model.embed_tokens.weight", "token_embd.weight"},
    {TensorRole::kOutput, Scope::kModel, "lm_head.weight", "output.weight"},
    {TensorRole::kFinalNorm, Scope::kModel, "model.norm.weight", "output_norm.weight"},
    {TensorRole::kAttnNorm, Scope::kLayer, "input_layernorm.weight", "attn_norm.weight"},
    {TensorRole::kFfnNorm, Scope::kLayer, "post_attention_layernorm.weight", "ffn_norm.weight"},
    {TensorRole::kQ, Scope::kLayer, "self_attn.q_proj.weight", "attn_q.weight"},
    {TensorRole::kK, Scope::kLayer, "self_attn.k_proj.weight", "attn_k.weight"},
    {TensorRole::kV, Scope::kLayer, "self_attn.v_proj.weight", "attn_v.weight"},
    {TensorRole::kQBias, Scope::kLayer, "self_attn.q_proj.bias", ""},
    {TensorRole::kKBias, Scope::kLayer, "self_attn.k_proj.bias", ""},
    {TensorRole::kVBias, Scope::kLayer, "self_attn.v_proj.bias", ""},
    {TensorRole::kQNorm, Scope::kLayer, "self_attn.q_norm.weight", "attn_q_norm.weight"},
    {TensorRole::kKNorm, Scope::kLayer, "self_attn.k_norm.weight", "attn_k_norm.weight"},
    {TensorRole::kO, Scope::kLayer, "self_attn.o_proj.weight", "attn_output.weight"},
    {TensorRole::kQA, Scope::kLayer, "self_attn.q_a_proj.weight", ""},
    {TensorRole::kQANorm, Scope::kLayer, "self_attn.q_a_layernorm.weight", ""},
    {TensorRole::kQB, Scope::kLayer, "self_attn.q_b_proj.weight", ""},
    {TensorRole::kKvA, Scope::kLayer, "self_attn.kv_a_proj_with_mqa.weight", ""},
    {TensorRole::kKvANorm, Scope::kLayer, "self_attn.kv_a_layernorm.weight", ""},
    {TensorRole::kKvB, Scope::kLayer, "self_attn.kv_b_proj.weight", ""},
    {TensorRole::kIndexQ, Scope::kLayer, "self_attn.indexer.wq_b.weight", ""},
    {TensorRole::kIndexK, Scope::kLayer, "self_attn.indexer.wk.weight", ""},
    {TensorRole::kIndexKNorm, Scope::kLayer, "self_attn.indexer.k_norm.weight", ""},
    {TensorRole::kIndexKNormBias, Scope::kLayer, "self_attn.indexer.k_norm.bias", ""},
    {TensorRole::kIndexWeights, Scope::kLayer, "self_attn.indexer.weights_proj.weight", ""},
    {TensorRole::kGate, Scope::kLayer, "mlp.gate_proj.weight", "ffn_gate.weight"},
    {TensorRole::kUp, Scope::kLayer, "mlp.up_proj.weight", "ffn_up.weight"},
    {TensorRole::kDown, Scope::kLayer, "mlp.down_proj.weight", "ffn_down.weight"},
    {TensorRole::kRouter, Scope::kLayer, "mlp.gate.weight", ""},
    {TensorRole::kRouterBias, Scope::kLayer, "mlp.gate.e_score_correction_bias", ""},
    {TensorRole::kSharedGate, Scope::kLayer, "mlp.shared_experts.gate_proj.weight", ""},
    {TensorRole::kSharedUp, Scope::kLayer, "mlp.shared_experts.up_proj.weight", ""},
    {TensorRole::kSharedDown, Scope::kLayer, "mlp.shared_experts.down_proj.weight", ""},
    {TensorRole::kExpertGate, Scope::kExpert, "gate_proj.weight", ""},
    {TensorRole::kExpertUp, Scope::kExpert, "up_proj.weight", ""},
    {TensorRole::kExpertDown, Scope::kExpert, "down_proj.weight", ""},
};

constexpr bool RolesAreInOrder() {
  for (size_t i = 0; i < std::size(kRoles); ++i) {
    if (static_cast<size_t>(kRoles[i].role) != i) return false;
  }
  return std::size(kRoles) == static_cast<size_t>(TensorRole::kExpertDown) + 1;
}
static_assert(RolesAreInOrder());

const RoleRow& RowOf(TensorRole role) { return kRoles[static_cast<size_t>(role)]; }

TensorShape MlaShape(TensorRole role, const ModelConfig& config) {
  const MlaConfig& mla = *config.mla;
  switch (role) {
    case TensorRole::kQA:
      return {mla.q_lora_rank, config.hidden};
    case TensorRole::kQANorm:
      return {1, mla.q_lora_rank};
    case TensorRole::kQB:
      return {config.q_width(), mla.q_lora_rank};
    case TensorRole::kKvA:
      return {mla.kv_lora_rank + mla.qk_rope_head_dim, config.hidden};
    case TensorRole::kKvANorm:
      return {1, mla.kv_lora_rank};
    case TensorRole::kKvB:
      return {int64_t{config.heads} * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank};
    case TensorRole::kIndexQ:
      return {int64_t{config.dsa->heads} * config.dsa->head_dim, mla.q_lora_rank};
    case TensorRole::kIndexK:
      return {config.dsa->head_dim, config.hidden};
    case TensorRole::kIndexKNorm:
    case TensorRole::kIndexKNormBias:
      return {1, config.dsa->head_dim};
    case TensorRole::kIndexWeights:
      return {config.dsa->heads, config.hidden};
    default:
      return {};
  }
}

TensorShape FeedForwardShape(TensorRole role, const ModelConfig& config) {
  switch (role) {
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {config.intermediate, config.hidden};
    case TensorRole::kDown:
      return {config.hidden, config.intermediate};
    case TensorRole::kRouter:
      return {config.moe->experts, config.hidden};
    case TensorRole::kRouterBias:
      return {1, config.moe->experts};
    case TensorRole::kSharedGate:
    case TensorRole::kSharedUp:
      return {config.moe->shared_intermediate, config.hidden};
    case TensorRole::kSharedDown:
      return {config.hidden, config.moe->shared_intermediate};
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
      return {config.moe->intermediate, config.hidden};
    case TensorRole::kExpertDown:
      return {config.hidden, config.moe->intermediate};
    default:
      return {};
  }
}

}  // namespace

bool TensorExists(TensorId id, const ModelConfig& config) {
  const TensorRole role = id.role;
  const Scope scope = RowOf(role).scope;
  if (scope == Scope::kModel) return role != TensorRole::kOutput || !config.tied_embeddings;
  if (id.layer < 0 || id.layer >= config.layers) return false;
  if (scope == Scope::kExpert) {
    return config.is_sparse(id.layer) && id.expert >= 0 && id.expert < config.moe->experts;
  }
  if (role <= TensorRole::kFfnNorm || role == TensorRole::kO) return true;
  if (role == TensorRole::kQ) return !config.mla || config.mla->q_lora_rank == 0;
  if (role <= TensorRole::kV) return !config.mla;
  if (role <= TensorRole::kVBias) return config.qkv_bias && !config.mla;
  if (role <= TensorRole::kKNorm) return config.qk_norm && !config.mla;
  if (role <= TensorRole::kQB) return config.mla && config.mla->q_lora_rank > 0;
  if (role <= TensorRole::kKvB) return config.mla.has_value();
  if (role <= TensorRole::kIndexWeights) return config.has_indexer(id.layer);
  if (role <= TensorRole::kDown) return !config.is_sparse(id.layer);
  if (!config.is_sparse(id.layer)) return false;
  if (role == TensorRole::kRouter) return true;
  if (role == TensorRole::kRouterBias) return config.moe->correction_bias;
  return config.moe->shared_intermediate > 0;
}

TensorShape TensorShapeOf(TensorRole role, const ModelConfig& config) {
  switch (role) {
    case TensorRole::kEmbedding:
    case TensorRole::kOutput:
      return {config.vocabulary, config.hidden};
    case TensorRole::kFinalNorm:
    case TensorRole::kAttnNorm:
    case TensorRole::kFfnNorm:
      return {1, config.hidden};
    case TensorRole::kQ:
      return {config.q_width(), config.hidden};
    case TensorRole::kK:
    case TensorRole::kV:
      return {config.kv_width(), config.hidden};
    case TensorRole::kQBias:
      return {1, config.q_width()};
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return {1, config.kv_width()};
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return {1, config.head_dim};
    case TensorRole::kO:
      return {config.hidden,
              config.mla ? int64_t{config.heads} * config.mla->v_head_dim : config.q_width()};
    default:
      break;
  }
  return role < TensorRole::kGate ? MlaShape(role, config) : FeedForwardShape(role, config);
}

std::string HfTensorName(TensorId id) {
  const RoleRow& row = RowOf(id.role);
  switch (row.scope) {
    case Scope::kModel:
      return std::string(row.hf);
    case Scope::kLayer:
      return absl::StrCat("model.layers.", id.layer, ".", row.hf);
    case Scope::kExpert:
      return absl::StrCat("model.layers.", id.layer, ".mlp.experts.", id.expert, ".", row.hf);
  }
  return "";
}

std::string GgufTensorName(TensorId id) {
  const RoleRow& row = RowOf(id.role);
  if (row.gguf.empty() || row.scope == Scope::kModel) return std::string(row.gguf);
  return absl::StrCat("blk.", id.layer, ".", row.gguf);
}

RotatedRows RotatedRowsOf(TensorRole role, const ModelConfig& config) {
  const int64_t rotated = config.rotary_dim();
  switch (role) {
    case TensorRole::kQ:
      if (config.mla) return {config.head_dim, config.mla->qk_nope_head_dim, rotated};
      return {config.head_dim, 0, rotated};
    case TensorRole::kK:
      return {config.head_dim, 0, rotated};
    case TensorRole::kQB:
      return {config.head_dim, config.mla->qk_nope_head_dim, rotated};
    case TensorRole::kKvA:
      return {config.mla->kv_lora_rank + rotated, config.mla->kv_lora_rank, rotated};
    case TensorRole::kIndexQ:
    case TensorRole::kIndexK:
      return {config.dsa->head_dim, 0, rotated};
    default:
      return {};
  }
}

absl::Status ForEachTensor(const ModelConfig& config,
                           absl::FunctionRef<absl::Status(TensorId)> visit) {
  for (const RoleRow& row : kRoles) {
    const int32_t layers = row.scope == Scope::kModel ? 1 : config.layers;
    const int32_t experts = row.scope == Scope::kExpert && config.moe ? config.moe->experts : 1;
    for (int32_t layer = 0; layer < layers; ++layer) {
      for (int32_t expert = 0; expert < experts; ++expert) {
        const TensorId id = {row.role, layer, expert};
        if (TensorExists(id, config)) SLUICE_RETURN_IF_ERROR(visit(id));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::model
