// config.json of a Hugging Face folder.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config.h"
#include "model/hf_fields.h"

namespace sluice::model {
namespace {

using formats::JsonValue;

constexpr int32_t kMaxLayersRead = 1 << 16;  // ValidateConfig says what is possible

constexpr std::pair<absl::string_view, Family> kModelTypes[] = {
    {"llama", Family::kLlama},
    {"qwen3", Family::kQwen3},
    {"qwen3_moe", Family::kQwen3Moe},
    {"deepseek_v3", Family::kDeepseekV3},
    {"kimi_k2", Family::kDeepseekV3},
    {"glm4_moe", Family::kGlm4Moe},
    {"glm4_moe_lite", Family::kGlm4MoeLite},
    {"glm_moe_dsa", Family::kGlmMoeDsa}};

absl::Status InFile(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, "/config.json: ", status.message()));
}

absl::Status ParseFamily(const JsonValue& config, Family* family) {
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view type, config.GetString("model_type"));
  std::string known;
  for (const auto& [name, value] : kModelTypes) {
    if (name == type) {
      *family = value;
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", name);
  }
  return absl::UnimplementedError(
      absl::StrCat("model_type '", type.substr(0, 64), "'; built are ", known));
}

// What a family may switch on: biases of q, k and v, norms of the heads of q and k.
absl::Status ParseOptions(const JsonValue& config, ModelConfig* out) {
  for (absl::string_view key : {"mlp_bias", "use_sliding_window"}) {
    SLUICE_RETURN_IF_ERROR(RefuseOption(config, key));
  }
  SLUICE_RETURN_IF_ERROR(ExpectString(config, "hidden_act", "silu"));
  switch (out->family) {
    case Family::kGlm4Moe: {
      SLUICE_ASSIGN_OR_RETURN(out->qkv_bias, config.GetBoolOr("attention_bias", false));
      SLUICE_ASSIGN_OR_RETURN(out->qk_norm, config.GetBoolOr("use_qk_norm", false));
      return absl::OkStatus();
    }
    case Family::kQwen3:
    case Family::kQwen3Moe:
      out->qk_norm = true;
      return RefuseOption(config, "attention_bias");
    default:
      return RefuseOption(config, "attention_bias");
  }
}

absl::Status ParseShape(const JsonValue& config, ModelConfig* out) {
  SLUICE_ASSIGN_OR_RETURN(out->layers, GetCount(config, "num_hidden_layers"));
  if (out->layers > kMaxLayersRead) {
    return absl::InvalidArgumentError(absl::StrCat("'num_hidden_layers' is ", out->layers,
                                                   ", possible are 1 to ", kMaxLayersRead));
  }
  SLUICE_ASSIGN_OR_RETURN(out->hidden, GetCount(config, "hidden_size"));
  SLUICE_ASSIGN_OR_RETURN(out->intermediate, GetCount(config, "intermediate_size"));
  SLUICE_ASSIGN_OR_RETURN(out->heads, GetCount(config, "num_attention_heads"));
  SLUICE_ASSIGN_OR_RETURN(out->kv_heads, GetCountOr(config, "num_key_value_heads", out->heads));
  const int32_t default_dim = out->heads > 0 ? out->hidden / out->heads : 0;
  SLUICE_ASSIGN_OR_RETURN(out->head_dim, GetCountOr(config, "head_dim", default_dim));
  SLUICE_ASSIGN_OR_RETURN(out->vocabulary, GetCount(config, "vocab_size"));
  SLUICE_ASSIGN_OR_RETURN(out->context_tokens, GetCount(config, "max_position_embeddings"));
  SLUICE_ASSIGN_OR_RETURN(const double eps, config.GetDouble("rms_norm_eps"));
  out->norm_eps = static_cast<float>(eps);
  SLUICE_ASSIGN_OR_RETURN(out->tied_embeddings, config.GetBoolOr("tie_word_embeddings", false));
  SLUICE_ASSIGN_OR_RETURN(out->mtp_layers, GetCountOr(config, "num_nextn_predict_layers", 0));
  return absl::OkStatus();
}

// A multimodal wrapper nests the language model; sometimes its quantization_config stays outside.
absl::StatusOr<const JsonValue*> TextConfig(const JsonValue& config) {
  const JsonValue* text = config.Find("text_config");
  if (text == nullptr || text->is_null()) return &config;
  if (!text->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'text_config' is ", text->kind(), ", expected an object"));
  }
  return text;
}

absl::Status ParseAll(const JsonValue& root, const JsonValue* generation, ModelConfig* out) {
  if (!root.is_object()) return absl::InvalidArgumentError("is no JSON object");
  SLUICE_ASSIGN_OR_RETURN(const JsonValue* text, TextConfig(root));
  const JsonValue& config = *text;
  out->multimodal = text != &root;
  SLUICE_RETURN_IF_ERROR(ParseFamily(config, &out->family));
  SLUICE_RETURN_IF_ERROR(ParseOptions(config, out));
  SLUICE_RETURN_IF_ERROR(ParseShape(config, out));
  SLUICE_RETURN_IF_ERROR(ParseMla(config, out));
  SLUICE_RETURN_IF_ERROR(ParseDsa(config, out));
  SLUICE_RETURN_IF_ERROR(ParseMoe(config, out));
  SLUICE_RETURN_IF_ERROR(ParseRope(config, out));
  SLUICE_RETURN_IF_ERROR(CheckQuantization(root));
  SLUICE_RETURN_IF_ERROR(CheckQuantization(config));
  SLUICE_RETURN_IF_ERROR(AddTokens(config, "bos_token_id", &out->bos_tokens));
  SLUICE_RETURN_IF_ERROR(AddTokens(config, "eos_token_id", &out->eos_tokens));
  if (generation != nullptr) {
    SLUICE_RETURN_IF_ERROR(AddTokens(*generation, "eos_token_id", &out->eos_tokens));
  }
  std::sort(out->eos_tokens.begin(), out->eos_tokens.end());
  out->eos_tokens.erase(std::unique(out->eos_tokens.begin(), out->eos_tokens.end()),
                        out->eos_tokens.end());
  return ValidateConfig(*out);
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromHf(const JsonValue& config, const JsonValue* generation,
                                         absl::string_view name) {
  ModelConfig out;
  out.name = std::string(name);
  const absl::Status status = ParseAll(config, generation, &out);
  if (!status.ok()) return InFile(name, status);
  return out;
}

}  // namespace sluice::model
