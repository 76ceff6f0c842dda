#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config.h"

namespace sluice::model {
namespace {

using formats::JsonValue;

absl::Status InFile(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, "/config.json: ", status.message()));
}

absl::StatusOr<int32_t> Narrow(absl::string_view key, int64_t value) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("'", key, "' is ", value, ", out of range"));
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<int32_t> GetCount(const JsonValue& config, absl::string_view key) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t value, config.GetInt(key));
  return Narrow(key, value);
}

absl::StatusOr<int32_t> GetCountOr(const JsonValue& config, absl::string_view key,
                                   int32_t fallback) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t value, config.GetIntOr(key, fallback));
  return Narrow(key, value);
}

// An option that the families support only when it is off.
absl::Status RefuseOption(const JsonValue& config, absl::string_view key) {
  SLUICE_ASSIGN_OR_RETURN(const bool on, config.GetBoolOr(key, false));
  if (on) return absl::UnimplementedError(absl::StrCat("'", key, "' is on; it is not built"));
  return absl::OkStatus();
}

// Adds the token or tokens at `key`: missing, null, a number or an array of numbers.
absl::Status AddTokens(const JsonValue& config, absl::string_view key, std::vector<int32_t>* out) {
  const JsonValue* value = config.Find(key);
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  const absl::Span<const JsonValue> tokens =
      value->is_array() ? value->array() : absl::MakeConstSpan(value, 1);
  for (const JsonValue& token : tokens) {
    const absl::StatusOr<int64_t> id = token.AsInt();
    if (!id.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("'", key, "' ", id.status().message()));
    }
    SLUICE_ASSIGN_OR_RETURN(const int32_t narrow, Narrow(key, *id));
    out->push_back(narrow);
  }
  return absl::OkStatus();
}

// The block of rope settings: rope_parameters (new) or rope_scaling (old); null when there is none.
const JsonValue* RopeBlock(const JsonValue& config) {
  for (absl::string_view key : {"rope_parameters", "rope_scaling"}) {
    const JsonValue* block = config.Find(key);
    if (block != nullptr && !block->is_null()) return block;
  }
  return nullptr;
}

absl::Status ParseRope(const JsonValue& config, RopeConfig* rope) {
  const JsonValue* block = RopeBlock(config);
  SLUICE_ASSIGN_OR_RETURN(rope->theta, config.GetDoubleOr("rope_theta", rope->theta));
  if (block == nullptr) return absl::OkStatus();
  if (!block->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rope settings are ", block->kind(), ", expected an object"));
  }
  SLUICE_ASSIGN_OR_RETURN(rope->theta, block->GetDoubleOr("rope_theta", rope->theta));
  absl::string_view type = "default";
  for (absl::string_view key : {"type", "rope_type"}) {
    if (block->Find(key) == nullptr) continue;
    SLUICE_ASSIGN_OR_RETURN(type, block->GetString(key));
  }
  if (type == "default") return absl::OkStatus();
  if (type != "llama3") {
    return absl::UnimplementedError(
        absl::StrCat("rope type '", type, "'; built are 'default' and 'llama3'"));
  }
  rope->scaling = RopeConfig::Scaling::kLlama3;
  SLUICE_ASSIGN_OR_RETURN(rope->factor, block->GetDouble("factor"));
  SLUICE_ASSIGN_OR_RETURN(rope->low_freq_factor, block->GetDouble("low_freq_factor"));
  SLUICE_ASSIGN_OR_RETURN(rope->high_freq_factor, block->GetDouble("high_freq_factor"));
  SLUICE_ASSIGN_OR_RETURN(rope->original_context,
                          block->GetDouble("original_max_position_embeddings"));
  return absl::OkStatus();
}

absl::Status ParseFamily(const JsonValue& config, Family* family) {
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view type, config.GetString("model_type"));
  if (type == "llama") {
    *family = Family::kLlama;
  } else if (type == "qwen3") {
    *family = Family::kQwen3;
  } else {
    return absl::UnimplementedError(
        absl::StrCat("model_type '", type, "'; built are 'llama' and 'qwen3'"));
  }
  for (absl::string_view key : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    SLUICE_RETURN_IF_ERROR(RefuseOption(config, key));
  }
  if (const JsonValue* act = config.Find("hidden_act"); act != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view name, config.GetString("hidden_act"));
    if (name != "silu") {
      return absl::UnimplementedError(absl::StrCat("hidden_act '", name, "'; only silu is built"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseShape(const JsonValue& config, ModelConfig* out) {
  SLUICE_ASSIGN_OR_RETURN(out->layers, GetCount(config, "num_hidden_layers"));
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
  return absl::OkStatus();
}

absl::Status ParseAll(const JsonValue& config, const JsonValue* generation, ModelConfig* out) {
  if (!config.is_object()) return absl::InvalidArgumentError("is no JSON object");
  SLUICE_RETURN_IF_ERROR(ParseFamily(config, &out->family));
  SLUICE_RETURN_IF_ERROR(ParseShape(config, out));
  SLUICE_RETURN_IF_ERROR(ParseRope(config, &out->rope));
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
