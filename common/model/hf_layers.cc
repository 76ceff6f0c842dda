// Latent attention, indexer and experts of a config.json.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/hf_fields.h"

namespace sluice::model {
namespace {

using formats::JsonValue;

bool HasMla(Family family) {
  return family == Family::kDeepseekV3 || family == Family::kGlm4MoeLite ||
         family == Family::kGlmMoeDsa;
}

// Layer i runs its own indexer iff max(i - offset + 1, 0) is a multiple of the frequency.
absl::StatusOr<std::vector<bool>> IndexerSchedule(const JsonValue& config, int32_t layers) {
  SLUICE_ASSIGN_OR_RETURN(const int32_t frequency, GetCountOr(config, "index_topk_freq", 1));
  SLUICE_ASSIGN_OR_RETURN(const int32_t offset, GetCountOr(config, "index_skip_topk_offset", 2));
  if (frequency == 0) return absl::InvalidArgumentError("'index_topk_freq' is 0");
  std::vector<bool> computes;
  for (int32_t i = 0; i < layers; ++i) {
    computes.push_back(std::max(i - offset + 1, 0) % frequency == 0);
  }
  return computes;
}

// "FFFS...": F layers run their own indexer, S layers share.
absl::StatusOr<std::vector<bool>> IndexerPattern(absl::string_view pattern) {
  std::vector<bool> computes;
  for (char c : pattern) {
    if (c != 'F' && c != 'S') {
      return absl::InvalidArgumentError(absl::StrCat(
          "'index_topk_pattern' holds '", absl::string_view(&c, 1), "'; expected are F and S"));
    }
    computes.push_back(c == 'F');
  }
  return computes;
}

absl::Status ParseRouter(const JsonValue& config, const ModelConfig& model, MoeConfig* moe) {
  if (model.family == Family::kQwen3Moe) {
    moe->scoring = Scoring::kSoftmax;
    SLUICE_ASSIGN_OR_RETURN(moe->normalize, config.GetBoolOr("norm_topk_prob", false));
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(ExpectString(config, "topk_method", "noaux_tc"));
  SLUICE_RETURN_IF_ERROR(ExpectString(config, "scoring_func", "sigmoid"));
  moe->correction_bias = true;
  SLUICE_ASSIGN_OR_RETURN(moe->groups, GetCountOr(config, "n_group", 1));
  SLUICE_ASSIGN_OR_RETURN(moe->topk_groups, GetCountOr(config, "topk_group", 1));
  SLUICE_ASSIGN_OR_RETURN(moe->normalize, config.GetBoolOr("norm_topk_prob", true));
  SLUICE_ASSIGN_OR_RETURN(const double scaling, config.GetDoubleOr("routed_scaling_factor", 1.0));
  moe->scaling = static_cast<float>(scaling);
  return absl::OkStatus();
}

// mlp_layer_types, or the older spellings of which layers are dense.
absl::StatusOr<std::vector<bool>> SparseLayers(const JsonValue& config, const ModelConfig& model) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<bool> sparse,
                          GetLayerFlags(config, "mlp_layer_types", "sparse", "dense"));
  if (!sparse.empty()) return sparse;
  if (model.family == Family::kQwen3Moe) {
    SLUICE_ASSIGN_OR_RETURN(const int32_t step, GetCountOr(config, "decoder_sparse_step", 1));
    if (step == 0) return absl::InvalidArgumentError("'decoder_sparse_step' is 0");
    std::vector<int32_t> dense;
    SLUICE_RETURN_IF_ERROR(AddTokens(config, "mlp_only_layers", &dense));
    for (int32_t i = 0; i < model.layers; ++i) {
      sparse.push_back((i + 1) % step == 0 &&
                       std::find(dense.begin(), dense.end(), i) == dense.end());
    }
    return sparse;
  }
  SLUICE_ASSIGN_OR_RETURN(const int32_t first, GetCount(config, "first_k_dense_replace"));
  SLUICE_ASSIGN_OR_RETURN(const int32_t step, GetCountOr(config, "moe_layer_freq", 1));
  if (step == 0) return absl::InvalidArgumentError("'moe_layer_freq' is 0");
  for (int32_t i = 0; i < model.layers; ++i) sparse.push_back(i >= first && i % step == 0);
  return sparse;
}

}  // namespace

absl::Status ParseMla(const JsonValue& config, ModelConfig* out) {
  if (!HasMla(out->family)) return absl::OkStatus();
  MlaConfig mla;
  SLUICE_ASSIGN_OR_RETURN(mla.q_lora_rank, GetCountOr(config, "q_lora_rank", 0));
  SLUICE_ASSIGN_OR_RETURN(mla.kv_lora_rank, GetCount(config, "kv_lora_rank"));
  SLUICE_ASSIGN_OR_RETURN(mla.qk_nope_head_dim, GetCount(config, "qk_nope_head_dim"));
  SLUICE_ASSIGN_OR_RETURN(mla.qk_rope_head_dim, GetCount(config, "qk_rope_head_dim"));
  SLUICE_ASSIGN_OR_RETURN(mla.v_head_dim, GetCount(config, "v_head_dim"));
  // Files of these families also carry a head_dim: sometimes the rope part, sometimes the rest.
  out->head_dim = std::min(mla.qk_nope_head_dim, 1 << 16) + std::min(mla.qk_rope_head_dim, 1 << 16);
  out->kv_heads = out->heads;
  out->mla = mla;
  return absl::OkStatus();
}

absl::Status ParseDsa(const JsonValue& config, ModelConfig* out) {
  if (out->family != Family::kGlmMoeDsa) return absl::OkStatus();
  DsaConfig dsa;
  SLUICE_ASSIGN_OR_RETURN(dsa.heads, GetCount(config, "index_n_heads"));
  SLUICE_ASSIGN_OR_RETURN(dsa.head_dim, GetCount(config, "index_head_dim"));
  SLUICE_ASSIGN_OR_RETURN(dsa.topk, GetCount(config, "index_topk"));
  SLUICE_ASSIGN_OR_RETURN(dsa.rope_interleaved, config.GetBoolOr("indexer_rope_interleave", true));
  SLUICE_ASSIGN_OR_RETURN(dsa.computes, GetLayerFlags(config, "indexer_types", "full", "shared"));
  const JsonValue* pattern = config.Find("index_topk_pattern");
  if (pattern != nullptr && !pattern->is_null()) {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view text, config.GetString("index_topk_pattern"));
    SLUICE_ASSIGN_OR_RETURN(dsa.computes, IndexerPattern(text));
  }
  if (dsa.computes.empty()) {
    SLUICE_ASSIGN_OR_RETURN(dsa.computes, IndexerSchedule(config, out->layers));
  }
  out->dsa = std::move(dsa);
  return absl::OkStatus();
}

absl::Status ParseMoe(const JsonValue& config, ModelConfig* out) {
  if (out->family == Family::kLlama || out->family == Family::kQwen3) return absl::OkStatus();
  MoeConfig moe;
  // Published files of Qwen3 say num_experts, newer exports num_local_experts.
  absl::string_view experts = "n_routed_experts";
  if (out->family == Family::kQwen3Moe) {
    experts = config.Find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  }
  SLUICE_ASSIGN_OR_RETURN(moe.experts, GetCount(config, experts));
  SLUICE_ASSIGN_OR_RETURN(moe.experts_per_token, GetCount(config, "num_experts_per_tok"));
  SLUICE_ASSIGN_OR_RETURN(moe.intermediate, GetCount(config, "moe_intermediate_size"));
  SLUICE_ASSIGN_OR_RETURN(const int32_t shared, GetCountOr(config, "n_shared_experts", 0));
  if (int64_t{shared} * moe.intermediate > (int64_t{1} << 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'n_shared_experts' is ", shared, ", out of range"));
  }
  moe.shared_intermediate = shared * moe.intermediate;
  SLUICE_RETURN_IF_ERROR(ParseRouter(config, *out, &moe));
  SLUICE_ASSIGN_OR_RETURN(moe.sparse, SparseLayers(config, *out));
  out->moe = std::move(moe);
  return absl::OkStatus();
}

}  // namespace sluice::model
