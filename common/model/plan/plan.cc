#include "model/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "model/tensor_roles.h"

namespace sluice::model {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGiB = 1024.0 * kMiB;

// What the driver reports as total memory.
struct Gpu {
  absl::string_view name;
  double memory_mib;
};
constexpr Gpu kGpus[] = {{"h100", 81559}, {"h200", 143771}, {"b200", 183359}, {"b300", 275040}};

// Context, communication buffers and library handles before weights are loaded: 1.4 to 1.9 GiB.
constexpr double kRuntimeBytes = 1.65 * kGiB;
// A vision tower beside the language model, kept on every GPU.
constexpr double kVisionBytes = 0.8e9;
constexpr double kMultimodalShare = 0.95;

enum class Part { kRouted, kShared, kDense, kAttention, kIndexer, kRouter, kNorms, kEmbedding };
constexpr absl::string_view kPartNames[] = {
    "routed experts", "shared experts", "dense feed-forward", "attention",
    "indexer",        "router",         "norms and biases",   "embedding and output"};
constexpr size_t kParts = std::size(kPartNames);

Part PartOf(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
    case TensorRole::kOutput:
      return Part::kEmbedding;
    case TensorRole::kGate:
    case TensorRole::kUp:
    case TensorRole::kDown:
      return Part::kDense;
    case TensorRole::kRouter:
    case TensorRole::kRouterBias:
      return Part::kRouter;
    case TensorRole::kSharedGate:
    case TensorRole::kSharedUp:
    case TensorRole::kSharedDown:
      return Part::kShared;
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
    case TensorRole::kExpertDown:
      return Part::kRouted;
    case TensorRole::kIndexQ:
    case TensorRole::kIndexK:
    case TensorRole::kIndexWeights:
      return Part::kIndexer;
    case TensorRole::kQ:
    case TensorRole::kK:
    case TensorRole::kV:
    case TensorRole::kO:
    case TensorRole::kQA:
    case TensorRole::kQB:
    case TensorRole::kKvA:
    case TensorRole::kKvB:
      return Part::kAttention;
    default:
      return Part::kNorms;
  }
}

// Ranks that split a tensor; 1 when each keeps a copy.
int32_t SplitOf(TensorRole role, const ModelConfig& config, int32_t tp) {
  switch (PartOf(role)) {
    case Part::kIndexer:
    case Part::kRouter:
    case Part::kNorms:
      return 1;
    case Part::kAttention:
      if (role == TensorRole::kQA || role == TensorRole::kKvA) return 1;
      if (role == TensorRole::kK || role == TensorRole::kV) return std::min(tp, config.kv_heads);
      return tp;
    default:
      return tp;
  }
}

// How the bytes of matrices follow from their shape.
struct WeightFormatRow {
  absl::string_view name;
  bool experts_only;  // where there are experts
  double bytes;       // an element
  double row_bytes;   // scales of a row
  bool blocks;        // an F32 scale per 128 x 128
};
constexpr WeightFormatRow kWeightFormats[] = {{"bf16", false, 2, 0, false},
                                              {"fp8", false, 1, 0, true},
                                              {"fp8-channel", false, 1, 2, false},
                                              {"int4", true, 0.5 + 2.0 / 32, 0, false},
                                              {"nvfp4", true, 0.5 + 1.0 / 16, 0, false}};

double BytesOf(TensorRole role, const TensorShape& shape, const WeightFormatRow& format,
               bool has_experts) {
  const double elements = static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
  const Part part = PartOf(role);
  if (role == TensorRole::kRouterBias) return 4 * elements;
  bool quantised = part == Part::kRouted;
  if (!format.experts_only || !has_experts) {
    quantised = quantised || part == Part::kShared || part == Part::kDense ||
                part == Part::kAttention ||
                (part == Part::kIndexer && role != TensorRole::kIndexWeights);
  }
  if (!quantised) return 2 * elements;
  const double rows = static_cast<double>(shape.rows);
  const double blocks = std::ceil(rows / 128) * std::ceil(static_cast<double>(shape.columns) / 128);
  return elements * format.bytes + rows * format.row_bytes + (format.blocks ? 4 * blocks : 0);
}

// Sums over tensors.
struct Sums {
  double parameters[kParts] = {};
  double checkpoint[kParts] = {};
  double per_gpu[kParts] = {};
  double mtp_parameters = 0;
  double mtp_checkpoint = 0;
  double mtp_per_gpu = 0;
  double kv_b_copies = 0;  // of one GPU: W_K and W_V apart, in bf16
};

// The config with its draft layers as sparse layers of their own.
ModelConfig WithDraftLayers(const ModelConfig& config) {
  ModelConfig all = config;
  all.layers += config.mtp_layers;
  for (int32_t i = 0; i < config.mtp_layers; ++i) {
    if (all.moe) all.moe->sparse.push_back(true);
    if (all.dsa) all.dsa->computes.push_back(true);
  }
  return all;
}

Sums SumTensors(const ModelConfig& config, const WeightFormatRow& format, int32_t tp) {
  Sums sums;
  const ModelConfig all = WithDraftLayers(config);
  static_cast<void>(ForEachTensor(all, [&](TensorId id) {
    const TensorShape shape = TensorShapeOf(id.role, all);
    const double elements = static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
    const double bytes = BytesOf(id.role, shape, format, all.moe.has_value());
    const double split = SplitOf(id.role, all, tp);
    if (id.layer >= config.layers) {
      sums.mtp_parameters += elements;
      sums.mtp_checkpoint += bytes;
      sums.mtp_per_gpu += bytes / split;
      return absl::OkStatus();
    }
    const size_t part = static_cast<size_t>(PartOf(id.role));
    sums.parameters[part] += elements;
    sums.checkpoint[part] += bytes;
    sums.per_gpu[part] += bytes / split;
    if (id.role == TensorRole::kKvB) sums.kv_b_copies += 2 * elements / split;
    return absl::OkStatus();
  }));
  // eh_proj and three norms of each draft layer, kept on every GPU.
  const double hidden = config.hidden;
  const double extra = config.mtp_layers * (2 * hidden * hidden + 3 * hidden);
  sums.mtp_parameters += extra;
  sums.mtp_checkpoint += 2 * extra;
  sums.mtp_per_gpu += 2 * extra;
  return sums;
}

// Bytes of a token's keys and values in one layer of one rank.
absl::StatusOr<double> KvBytes(const ModelConfig& config, absl::string_view kv, int32_t tp) {
  struct Row {
    absl::string_view name;
    double bytes;
  };
  std::vector<Row> rows;
  if (config.mla) {
    const double latent = config.mla->kv_lora_rank, rope = config.mla->qk_rope_head_dim;
    rows = {{"f32", 4 * (latent + rope)},
            {"bf16", 2 * (latent + rope)},
            {"fp8", latent + rope},
            {"mla_fp8", latent + rope + 3},
            {"mla_fp8_656", latent + 4 * std::ceil(latent / 128) + 2 * rope}};
  } else {
    const double heads = (config.kv_heads + tp - 1) / tp, dim = config.head_dim;
    rows = {{"f32", 8 * heads * dim},
            {"bf16", 4 * heads * dim},
            {"fp8", 2 * heads * dim},
            {"gqa_fp8", 2 * heads * (dim + 1)},
            {"gqa_fp8c", 2 * heads * (dim + 1)},
            {"gqa_int8c", 2 * heads * (dim + 2)}};
  }
  std::string known;
  for (const Row& row : rows) {
    if (row.name == kv) return row.bytes;
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("KV format '", kv, "'; ", config.name, " has ", known));
}

// Makes one plan, term by term.
class PlanMaker {
 public:
  PlanMaker(const ModelConfig& config, const PlanOptions& options)
      : config_(config), options_(options) {}

  absl::StatusOr<Plan> Make() {
    SLUICE_RETURN_IF_ERROR(CheckOptions());
    AddWeights();
    AddPool();
    SLUICE_RETURN_IF_ERROR(AddTokens());
    return std::move(plan_);
  }

 private:
  absl::Status CheckOptions() {
    std::string known;
    for (const Gpu& gpu : kGpus) {
      if (gpu.name == options_.gpu) gpu_ = &gpu;
      absl::StrAppend(&known, known.empty() ? "" : ", ", gpu.name);
    }
    if (gpu_ == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("GPU '", options_.gpu, "'; known are ", known));
    }
    known.clear();
    for (const WeightFormatRow& format : kWeightFormats) {
      if (format.name == options_.weights) format_ = &format;
      absl::StrAppend(&known, known.empty() ? "" : ", ", format.name);
    }
    if (format_ == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight format '", options_.weights, "'; known are ", known));
    }
    const bool fits = options_.tp >= 1 && options_.tp <= 1024 && options_.gpus >= options_.tp &&
                      options_.gpus <= 65536 && options_.gpus % options_.tp == 0;
    if (!fits || config_.heads % options_.tp != 0) {
      return absl::InvalidArgumentError(absl::StrCat("tp ", options_.tp, " must divide the ",
                                                     options_.gpus, " gpus and the ", config_.heads,
                                                     " heads of ", config_.name));
    }
    const double fraction = options_.memory_fraction.value_or(0.5);
    if (!(fraction > 0 && fraction <= 1) || options_.prefill_chunk_tokens < 1 ||
        options_.decode_batch_max < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("memory fraction ", fraction, " must lie in (0, 1]; chunk ",
                       options_.prefill_chunk_tokens, " and batch ", options_.decode_batch_max,
                       " must be positive"));
    }
    return absl::OkStatus();
  }

  void Add(std::string name, double value, std::string unit, std::string note = "") {
    plan_.terms.push_back({std::move(name), value, std::move(unit), std::move(note)});
  }

  void AddWeights() {
    const Sums sums = SumTensors(config_, *format_, options_.tp);
    double parameters = 0, checkpoint = 0;
    for (size_t i = 0; i < kParts; ++i) {
      if (sums.parameters[i] == 0) continue;
      Add(absl::StrCat("parameters: ", kPartNames[i]), sums.parameters[i], "parameters");
      Add(absl::StrCat("checkpoint: ", kPartNames[i]), sums.checkpoint[i], "bytes");
      Add(absl::StrCat("weights per GPU: ", kPartNames[i]), sums.per_gpu[i], "bytes",
          sums.per_gpu[i] * options_.tp > sums.checkpoint[i] * 1.0001 && options_.tp > 1
              ? "in part or whole a copy on every GPU"
              : absl::StrCat("split over ", options_.tp));
      parameters += sums.parameters[i];
      checkpoint += sums.checkpoint[i];
      weights_ += sums.per_gpu[i];
    }
    if (config_.mtp_layers > 0) {
      const std::string note = options_.mtp ? "loaded" : "in the checkpoint, not loaded";
      Add("parameters: draft layers", sums.mtp_parameters, "parameters", note);
      Add("checkpoint: draft layers", sums.mtp_checkpoint, "bytes", note);
      Add("weights per GPU: draft layers", options_.mtp ? sums.mtp_per_gpu : 0, "bytes", note);
      parameters += sums.mtp_parameters;
      checkpoint += sums.mtp_checkpoint;
      if (options_.mtp) weights_ += sums.mtp_per_gpu;
    }
    if (config_.mla) {
      Add("weights per GPU: kv_b once more", sums.kv_b_copies, "bytes",
          "its halves apart in bf16, for absorbed decode");
      weights_ += sums.kv_b_copies;
    }
    if (config_.multimodal) {
      Add("weights per GPU: vision tower", kVisionBytes, "bytes", "a copy on every GPU");
      weights_ += kVisionBytes;
    }
    Add("parameters", parameters, "parameters");
    Add("checkpoint", checkpoint, "bytes", options_.weights);
    Add("checkpoint over the GPUs of a copy", checkpoint / options_.tp, "bytes",
        "without what is a copy on every GPU");
    Add("weights per GPU", weights_, "bytes");
    plan_.parameters = static_cast<uint64_t>(parameters);
    plan_.checkpoint_bytes = static_cast<uint64_t>(checkpoint);
    plan_.weight_bytes_per_gpu = static_cast<uint64_t>(weights_);
  }

  // The part of the memory that weights and cache may take, as SGLang chooses it by default.
  double DefaultFraction() {
    const std::pair<absl::string_view, double> reserves[] = {
        {"reserve: constant", 512},
        {"reserve: activations of a prefill chunk", 1.5 * options_.prefill_chunk_tokens},
        {"reserve: decode graphs", 2.0 * options_.decode_batch_max},
        {"reserve: tensor parallel buffers", 128.0 * options_.tp},
        {"reserve: prefill graphs of latent attention", config_.mla ? 1536.0 : 0.0}};
    double total = 0;
    for (const auto& [name, mib] : reserves) {
      Add(std::string(name), mib, "MiB");
      total += mib;
    }
    const double fraction = std::round((1 - total / gpu_->memory_mib) * 1000) / 1000;
    return config_.multimodal ? fraction * kMultimodalShare : fraction;
  }

  void AddPool() {
    const double memory = gpu_->memory_mib * kMiB;
    Add("GPU memory", memory, "bytes", options_.gpu);
    Add("taken before loading", kRuntimeBytes, "bytes", "context, buffers, library handles");
    free_ = memory - kRuntimeBytes;
    Add("free before loading", free_, "bytes");
    const bool given = options_.memory_fraction.has_value();
    plan_.memory_fraction = given ? *options_.memory_fraction : DefaultFraction();
    Add("memory fraction", plan_.memory_fraction, "",
        given                ? "given"
        : config_.multimodal ? "1 - reserves / memory, times 0.95 beside a vision tower"
                             : "1 - reserves / memory");
    pool_ = free_ * plan_.memory_fraction - weights_;
    Add("KV pool per GPU", pool_, "bytes", "free x fraction - weights");
    plan_.kv_pool_bytes_per_gpu = static_cast<int64_t>(pool_);
  }

  absl::Status AddTokens() {
    SLUICE_ASSIGN_OR_RETURN(const double layer, KvBytes(config_, options_.kv, options_.tp));
    const int32_t layers = config_.layers + (options_.mtp ? config_.mtp_layers : 0);
    Add("KV of a token and layer", layer, "bytes",
        config_.mla ? absl::StrCat(options_.kv, ", a copy on every rank")
                    : absl::StrCat(options_.kv, ", heads of one rank"));
    Add("layers with KV", layers, "");
    double token = layer * layers;
    double least_token = token;  // with index keys only where they are computed, as our pages have
    if (config_.dsa) {
      const double key = config_.dsa->head_dim + 4;
      int32_t computing = options_.mtp ? config_.mtp_layers : 0;
      for (bool computes : config_.dsa->computes) computing += computes;
      Add("index key of a token and layer", key, "bytes", "e4m3 and one F32 scale");
      Add("layers with index keys", options_.index_every_layer ? layers : computing, "",
          absl::StrCat(computing, " layers compute one"));
      token += key * (options_.index_every_layer ? layers : computing);
      least_token += key * computing;
    }
    Add("KV of a token on a GPU", token, "bytes");
    plan_.kv_bytes_per_token = static_cast<uint64_t>(token);
    plan_.kv_tokens = static_cast<int64_t>(std::max(pool_, 0.0) / token);
    plan_.copies = options_.gpus / options_.tp;
    Add("copies of the model", plan_.copies, "");
    Add("KV tokens", static_cast<double>(plan_.kv_tokens), "tokens", "of one copy");
    if (least_token < token) {
      const double tokens = std::floor(std::max(pool_, 0.0) / least_token);
      Add("KV tokens, index keys only where computed", tokens, "tokens",
          absl::StrFormat("as pages of this project: %.0f bytes, %+.1f %%", least_token,
                          100 * (token / least_token - 1)));
    }
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const PlanOptions& options_;
  const Gpu* gpu_ = nullptr;
  const WeightFormatRow* format_ = nullptr;
  Plan plan_;
  double weights_ = 0;
  double free_ = 0;
  double pool_ = 0;
};

}  // namespace

absl::StatusOr<Plan> MakePlan(const ModelConfig& config, const PlanOptions& options) {
  return PlanMaker(config, options).Make();
}

}  // namespace sluice::model
