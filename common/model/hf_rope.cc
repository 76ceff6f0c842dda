// Rotary settings of a config.json: rope_parameters (new) or rope_theta and rope_scaling (old).
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/hf_fields.h"

namespace sluice::model {
namespace {

using formats::JsonValue;

// The block of rope settings; null when there is none.
const JsonValue* RopeBlock(const JsonValue& config) {
  for (absl::string_view key : {"rope_parameters", "rope_scaling"}) {
    const JsonValue* block = config.Find(key);
    if (block != nullptr && !block->is_null()) return block;
  }
  return nullptr;
}

absl::Status ParseLlama3(const JsonValue& block, RopeConfig* rope) {
  rope->scaling = RopeConfig::Scaling::kLlama3;
  SLUICE_ASSIGN_OR_RETURN(rope->factor, block.GetDouble("factor"));
  SLUICE_ASSIGN_OR_RETURN(rope->low_freq_factor, block.GetDouble("low_freq_factor"));
  SLUICE_ASSIGN_OR_RETURN(rope->high_freq_factor, block.GetDouble("high_freq_factor"));
  SLUICE_ASSIGN_OR_RETURN(rope->original_context,
                          block.GetDouble("original_max_position_embeddings"));
  return absl::OkStatus();
}

double Mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// With latent attention the square of m(mscale_all_dim) goes to the softmax.
absl::Status ParseYarn(const JsonValue& block, bool latent, RopeConfig* rope) {
  rope->scaling = RopeConfig::Scaling::kYarn;
  SLUICE_ASSIGN_OR_RETURN(rope->factor, block.GetDouble("factor"));
  SLUICE_ASSIGN_OR_RETURN(rope->original_context,
                          block.GetDouble("original_max_position_embeddings"));
  SLUICE_ASSIGN_OR_RETURN(rope->beta_fast, block.GetDoubleOr("beta_fast", rope->beta_fast));
  SLUICE_ASSIGN_OR_RETURN(rope->beta_slow, block.GetDoubleOr("beta_slow", rope->beta_slow));
  SLUICE_ASSIGN_OR_RETURN(const double mscale, block.GetDoubleOr("mscale", 0));
  SLUICE_ASSIGN_OR_RETURN(const double all_dim, block.GetDoubleOr("mscale_all_dim", 0));
  const bool both = mscale != 0 && all_dim != 0;
  const double own =
      both ? Mscale(rope->factor, mscale) / Mscale(rope->factor, all_dim) : Mscale(rope->factor, 1);
  SLUICE_ASSIGN_OR_RETURN(rope->magnitude, block.GetDoubleOr("attention_factor", own));
  if (latent && all_dim != 0) {
    const double m = Mscale(rope->factor, all_dim);
    rope->softmax_factor = m * m;
  }
  SLUICE_ASSIGN_OR_RETURN(const bool truncate, block.GetBoolOr("truncate", true));
  if (!truncate) return absl::UnimplementedError("rope 'truncate' is off; that is not built");
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseRope(const JsonValue& config, ModelConfig* out) {
  RopeConfig* const rope = &out->rope;
  SLUICE_ASSIGN_OR_RETURN(rope->theta, config.GetDoubleOr("rope_theta", rope->theta));
  const double partial = out->family == Family::kGlm4Moe ? 0.5 : 1.0;
  SLUICE_ASSIGN_OR_RETURN(rope->partial, config.GetDoubleOr("partial_rotary_factor", partial));
  SLUICE_ASSIGN_OR_RETURN(rope->interleaved,
                          config.GetBoolOr("rope_interleave", out->mla.has_value()));
  if (rope->interleaved && !out->mla) {
    return absl::UnimplementedError("'rope_interleave' is on without latent attention");
  }
  const JsonValue* block = RopeBlock(config);
  if (block == nullptr) return absl::OkStatus();
  if (!block->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rope settings are ", block->kind(), ", expected an object"));
  }
  SLUICE_ASSIGN_OR_RETURN(rope->theta, block->GetDoubleOr("rope_theta", rope->theta));
  SLUICE_ASSIGN_OR_RETURN(rope->partial,
                          block->GetDoubleOr("partial_rotary_factor", rope->partial));
  absl::string_view type = "default";
  for (absl::string_view key : {"type", "rope_type"}) {
    if (block->Find(key) == nullptr) continue;
    SLUICE_ASSIGN_OR_RETURN(type, block->GetString(key));
  }
  if (type == "default") return absl::OkStatus();
  if (type == "llama3") return ParseLlama3(*block, rope);
  if (type == "yarn") return ParseYarn(*block, out->mla.has_value(), rope);
  return absl::UnimplementedError(absl::StrCat("rope type '", type.substr(0, 64),
                                               "'; built are 'default', 'llama3' and 'yarn'"));
}

}  // namespace sluice::model
