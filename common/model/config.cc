#include "model/config.h"

#include <bit>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace sluice::model {
namespace {

constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxWidth = 1 << 18;  // hidden, intermediate
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxHeadDim = 1024;
constexpr int32_t kMaxRank = 1 << 16;
constexpr int32_t kMaxExperts = 4096;
constexpr int32_t kMaxTopk = 1 << 20;
constexpr int32_t kMaxVocabulary = 1 << 22;
constexpr int32_t kMaxContext = 1 << 26;

// In the order of Family.
constexpr absl::string_view kFamilyNames[] = {
    "llama", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"};

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("model config: ", what));
}

absl::Status CheckPositive(absl::string_view what, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return Bad(absl::StrCat(what, " is ", value, ", it must be a positive number"));
}

struct Range {
  absl::string_view what;
  int32_t value;
  int32_t max;
  int32_t min = 1;
};

absl::Status CheckRanges(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) {
    if (range.value >= range.min && range.value <= range.max) continue;
    return Bad(absl::StrCat(range.what, " is ", range.value, ", possible are ", range.min, " to ",
                            range.max));
  }
  return absl::OkStatus();
}

absl::Status CheckPerLayer(absl::string_view what, size_t entries, int32_t layers) {
  if (entries == static_cast<size_t>(layers)) return absl::OkStatus();
  return Bad(absl::StrCat(what, " has ", entries, " entries for ", layers, " layers"));
}

absl::Status CheckMla(const ModelConfig& config) {
  const MlaConfig& mla = *config.mla;
  SLUICE_RETURN_IF_ERROR(CheckRanges({{"q_lora_rank", mla.q_lora_rank, kMaxRank, 0},
                                      {"kv_lora_rank", mla.kv_lora_rank, kMaxRank},
                                      {"qk_nope_head_dim", mla.qk_nope_head_dim, kMaxHeadDim},
                                      {"qk_rope_head_dim", mla.qk_rope_head_dim, kMaxHeadDim},
                                      {"v_head_dim", mla.v_head_dim, kMaxHeadDim}}));
  if (mla.qk_nope_head_dim + mla.qk_rope_head_dim == config.head_dim) return absl::OkStatus();
  return Bad(absl::StrCat("head dimension ", config.head_dim, " is not qk_nope_head_dim ",
                          mla.qk_nope_head_dim, " + qk_rope_head_dim ", mla.qk_rope_head_dim));
}

absl::Status CheckDsa(const ModelConfig& config) {
  const DsaConfig& dsa = *config.dsa;
  SLUICE_RETURN_IF_ERROR(CheckRanges({{"index_n_heads", dsa.heads, kMaxHeads},
                                      {"index_head_dim", dsa.head_dim, kMaxHeadDim},
                                      {"index_topk", dsa.topk, kMaxTopk}}));
  if (!config.mla || config.mla->q_lora_rank == 0) {
    return Bad("an indexer without latent attention and its q_lora_rank");
  }
  if (dsa.head_dim < config.mla->qk_rope_head_dim) {
    return Bad(absl::StrCat("index_head_dim ", dsa.head_dim, " is less than qk_rope_head_dim ",
                            config.mla->qk_rope_head_dim));
  }
  SLUICE_RETURN_IF_ERROR(CheckPerLayer("indexer_types", dsa.computes.size(), config.layers));
  return dsa.computes[0] ? absl::OkStatus() : Bad("layer 0 has no indexer to reuse");
}

absl::Status CheckMoe(const ModelConfig& config) {
  const MoeConfig& moe = *config.moe;
  SLUICE_RETURN_IF_ERROR(CheckRanges(
      {{"number of experts", moe.experts, kMaxExperts},
       {"number of experts per token", moe.experts_per_token, moe.experts},
       {"intermediate size of an expert", moe.intermediate, kMaxWidth},
       {"intermediate size of the shared expert", moe.shared_intermediate, kMaxWidth, 0},
       {"n_group", moe.groups, moe.experts},
       {"topk_group", moe.topk_groups, moe.groups}}));
  SLUICE_RETURN_IF_ERROR(CheckPositive("routed_scaling_factor", double{moe.scaling}));
  if (moe.experts % moe.groups != 0 || (moe.groups > 1 && moe.experts / moe.groups < 2)) {
    return Bad(absl::StrCat(moe.experts, " experts do not form ", moe.groups,
                            " equal groups of at least 2"));
  }
  const int32_t reachable = moe.experts / moe.groups * moe.topk_groups;
  if (moe.experts_per_token > reachable) {
    return Bad(absl::StrCat(moe.experts_per_token, " experts per token, but ", moe.topk_groups,
                            " groups have only ", reachable));
  }
  return CheckPerLayer("the list of sparse layers", moe.sparse.size(), config.layers);
}

absl::Status CheckRope(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  SLUICE_RETURN_IF_ERROR(CheckPositive("rope theta", rope.theta));
  SLUICE_RETURN_IF_ERROR(CheckPositive("partial_rotary_factor", rope.partial));
  const int32_t width = rope.partial <= 1 ? config.rotary_dim() : 0;
  if (width < 2 || width % 2 != 0) {
    return Bad(absl::StrCat("rotated are ", width, " elements (partial_rotary_factor ",
                            rope.partial, "); it must be an even number within a head"));
  }
  if (rope.scaling != RopeConfig::Scaling::kNone) {
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope factor", rope.factor));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope original context", rope.original_context));
  }
  if (rope.scaling == RopeConfig::Scaling::kLlama3) {
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope low_freq_factor", rope.low_freq_factor));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope high_freq_factor minus low_freq_factor",
                                         rope.high_freq_factor - rope.low_freq_factor));
  }
  if (rope.scaling == RopeConfig::Scaling::kYarn) {
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope theta minus 1", rope.theta - 1));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope beta_fast", rope.beta_fast));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope beta_slow", rope.beta_slow));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope attention factor", rope.magnitude));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope softmax factor", rope.softmax_factor));
  }
  const size_t pairs = static_cast<size_t>(width / 2);
  if (!rope.divisors.empty() && rope.divisors.size() != pairs) {
    return Bad(absl::StrCat(rope.divisors.size(), " rope divisors for ", pairs, " pairs"));
  }
  for (float divisor : rope.divisors) {
    SLUICE_RETURN_IF_ERROR(CheckPositive("a rope divisor", double{divisor}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view FamilyName(Family family) { return kFamilyNames[static_cast<int>(family)]; }

int32_t ModelConfig::rotary_dim() const {
  if (mla) return mla->qk_rope_head_dim;
  return static_cast<int32_t>(static_cast<double>(head_dim) * rope.partial);
}

float ModelConfig::softmax_scale() const {
  return static_cast<float>(rope.softmax_factor / std::sqrt(static_cast<double>(head_dim)));
}

absl::Status ValidateConfig(const ModelConfig& config) {
  SLUICE_RETURN_IF_ERROR(
      CheckRanges({{"number of layers", config.layers, kMaxLayers},
                   {"hidden size", config.hidden, kMaxWidth},
                   {"intermediate size", config.intermediate, kMaxWidth},
                   {"number of heads", config.heads, kMaxHeads},
                   {"number of key-value heads", config.kv_heads, kMaxHeads},
                   {"head dimension", config.head_dim, 2 * kMaxHeadDim},
                   {"vocabulary", config.vocabulary, kMaxVocabulary},
                   {"context length", config.context_tokens, kMaxContext},
                   {"num_nextn_predict_layers", config.mtp_layers, kMaxLayers, 0}}));
  SLUICE_RETURN_IF_ERROR(CheckPositive("norm epsilon", double{config.norm_eps}));
  if (config.heads % config.kv_heads != 0 || (!config.mla && config.head_dim % 2 != 0)) {
    return Bad(absl::StrCat(config.heads, " heads, ", config.kv_heads, " key-value heads of ",
                            config.head_dim, " do not fit together"));
  }
  if (config.mla) SLUICE_RETURN_IF_ERROR(CheckMla(config));
  if (config.dsa) SLUICE_RETURN_IF_ERROR(CheckDsa(config));
  if (config.moe) SLUICE_RETURN_IF_ERROR(CheckMoe(config));
  SLUICE_RETURN_IF_ERROR(CheckRope(config));
  for (const auto* tokens : {&config.bos_tokens, &config.eos_tokens}) {
    for (int32_t token : *tokens) {
      if (token >= 0 && token < config.vocabulary) continue;
      return Bad(absl::StrCat("special token ", token, " is outside the vocabulary of ",
                              config.vocabulary));
    }
  }
  return absl::OkStatus();
}

Id128 ConfigDigest(const ModelConfig& config) {
  const auto bits = [](float value) { return absl::Hex(std::bit_cast<uint32_t>(value)); };
  const auto flags = [](const std::vector<bool>& values) {
    std::string text;
    for (bool value : values) text.push_back(value ? '1' : '0');
    return text;
  };
  std::string text = absl::StrCat(FamilyName(config.family), ";", config.layers, ";", config.hidden,
                                  ";", config.intermediate, ";", config.heads, ";", config.kv_heads,
                                  ";", config.head_dim, ";", config.vocabulary, ";",
                                  bits(config.norm_eps), ";", config.tied_embeddings, ";");
  absl::StrAppend(&text, config.qk_norm, ";", config.qkv_bias, ";", bits(config.softmax_scale()),
                  ";", bits(static_cast<float>(config.rope.magnitude)), ";");
  if (config.mla) {
    absl::StrAppend(&text, "mla;", config.mla->q_lora_rank, ";", config.mla->kv_lora_rank, ";",
                    config.mla->qk_nope_head_dim, ";", config.mla->v_head_dim, ";");
  }
  if (config.dsa) {
    absl::StrAppend(&text, "dsa;", config.dsa->heads, ";", config.dsa->head_dim, ";",
                    config.dsa->topk, ";", flags(config.dsa->computes), ";");
  }
  if (config.moe) {
    const MoeConfig& moe = *config.moe;
    absl::StrAppend(&text, "moe;", moe.experts, ";", moe.experts_per_token, ";", moe.intermediate,
                    ";", moe.shared_intermediate, ";", moe.scoring == Scoring::kSigmoid, ";",
                    moe.correction_bias, ";", moe.groups, ";", moe.topk_groups, ";", moe.normalize);
    absl::StrAppend(&text, ";", bits(moe.scaling), ";", flags(moe.sparse), ";");
  }
  const std::vector<float> frequencies = InverseFrequencies(config);
  const Id128 scalars = Hash128(text.data(), text.size());
  return Hash128(frequencies.data(), frequencies.size() * sizeof(float), scalars.low);
}

}  // namespace sluice::model
