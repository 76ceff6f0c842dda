#include "model/plan/published.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::model {
namespace {

// What decides sizes. Zero: the model has no such thing.
struct Shape {
  absl::string_view name;
  Family family;
  absl::string_view weights;
  int32_t layers, dense, hidden, intermediate, heads, kv_heads, head_dim, vocabulary, context;
  int32_t experts = 0, topk = 0, expert_intermediate = 0, shared = 0, mtp = 0;
  MlaConfig mla = {};
  int32_t indexers_from = 0;  // DSA: every layer before it computes, then every `index_step`-th
  int32_t index_step = 0;
  bool tied = false;
  bool multimodal = false;
};

constexpr MlaConfig kKimiMla = {1536, 512, 128, 64, 128};
constexpr MlaConfig kGlm5Mla = {2048, 512, 192, 64, 256};
constexpr MlaConfig kFlashMla = {768, 512, 192, 64, 256};

constexpr Shape Kimi(absl::string_view name, absl::string_view weights, int32_t context,
                     bool multimodal) {
  return {name,    Family::kDeepseekV3,
          weights, 61,
          1,       7168,
          18432,   64,
          64,      192,
          163840,  context,
          384,     8,
          2048,    1,
          0,       kKimiMla,
          0,       0,
          false,   multimodal};
}
constexpr Shape Glm4(absl::string_view name, int32_t context) {
  return {name, Family::kGlm4Moe, "bf16",  92,  3, 5120, 12288, 96, 8,
          128,  151552,           context, 160, 8, 1536, 1,     1};
}
constexpr Shape Glm5(absl::string_view name, int32_t context, int32_t from, int32_t step) {
  return {name,   Family::kGlmMoeDsa,
          "bf16", 78,
          3,      6144,
          12288,  64,
          64,     256,
          154880, context,
          256,    8,
          2048,   1,
          1,      kGlm5Mla,
          from,   step};
}

constexpr Shape kShapes[] = {
    Kimi("kimi-k2-instruct", "fp8", 131072, false),
    Kimi("kimi-k2-thinking", "int4", 262144, false),
    Kimi("kimi-k2.5", "int4", 262144, true),
    Kimi("kimi-k2.6", "int4", 262144, true),
    Kimi("kimi-k2.7-code", "int4", 262144, true),
    {"deepseek-v3", Family::kDeepseekV3, "fp8", 61, 3, 7168, 18432, 128, 128, 192, 129280, 163840,
     256, 8, 2048, 1, 1, kKimiMla},
    Glm4("glm-4.5", 131072),
    Glm4("glm-4.6", 202752),
    Glm4("glm-4.7", 202752),
    {"glm-4.5-air", Family::kGlm4Moe, "bf16", 46, 1, 4096, 10944, 96, 8, 128, 151552, 131072, 128,
     8, 1408, 1, 1},
    {"glm-4.7-flash", Family::kGlm4MoeLite, "bf16", 47, 1, 2048, 10240, 20, 20, 256, 154880, 202752,
     64, 4, 1536, 1, 1, kFlashMla},
    Glm5("glm-5", 202752, 78, 1),
    Glm5("glm-5.1", 202752, 78, 1),
    Glm5("glm-5.2", 1048576, 3, 4),
    {"qwen3-0.6b", Family::kQwen3, "bf16", 28, 28, 1024, 3072, 16, 8, 128,
     151936,       40960,          0,      0,  0,  0,    0,    {}, 0, 0,
     true},
    {"qwen3-1.7b", Family::kQwen3, "bf16", 28, 28, 2048, 6144, 16, 8, 128,
     151936,       40960,          0,      0,  0,  0,    0,    {}, 0, 0,
     true},
    {"qwen3-30b-a3b", Family::kQwen3Moe, "bf16", 48, 0, 2048, 6144, 32, 4, 128, 151936, 40960, 128,
     8, 768, 0},
    {"smollm2-135m",
     Family::kLlama,
     "bf16",
     30,
     30,
     576,
     1536,
     9,
     3,
     64,
     49152,
     8192,
     0,
     0,
     0,
     0,
     0,
     {},
     0,
     0,
     true},
};

ModelConfig ConfigOf(const Shape& shape) {
  ModelConfig config;
  config.name = std::string(shape.name);
  config.family = shape.family;
  config.layers = shape.layers;
  config.hidden = shape.hidden;
  config.intermediate = shape.intermediate;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.vocabulary = shape.vocabulary;
  config.context_tokens = shape.context;
  config.tied_embeddings = shape.tied;
  config.multimodal = shape.multimodal;
  config.mtp_layers = shape.mtp;
  config.qk_norm = shape.family == Family::kQwen3 || shape.family == Family::kQwen3Moe ||
                   (shape.family == Family::kGlm4Moe && shape.hidden > 4096);
  config.qkv_bias = shape.family == Family::kGlm4Moe;
  config.rope.theta = 1e6;
  if (shape.mla.kv_lora_rank > 0) config.mla = shape.mla;
  if (shape.index_step > 0) {
    DsaConfig dsa;
    dsa.heads = 32;
    dsa.head_dim = 128;
    dsa.topk = 2048;
    for (int32_t i = 0; i < shape.layers; ++i) {
      const int32_t since = i - shape.indexers_from + 1;
      dsa.computes.push_back(since <= 0 || since % shape.index_step == 0);
    }
    config.dsa = dsa;
  }
  if (shape.experts > 0) {
    MoeConfig moe;
    moe.experts = shape.experts;
    moe.experts_per_token = shape.topk;
    moe.intermediate = shape.expert_intermediate;
    moe.shared_intermediate = shape.shared * shape.expert_intermediate;
    moe.scoring = shape.family == Family::kQwen3Moe ? Scoring::kSoftmax : Scoring::kSigmoid;
    moe.correction_bias = moe.scoring == Scoring::kSigmoid;
    for (int32_t i = 0; i < shape.layers; ++i) moe.sparse.push_back(i >= shape.dense);
    config.moe = moe;
  }
  return config;
}

}  // namespace

std::vector<std::string> PublishedModelNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

absl::StatusOr<PublishedModel> FindPublishedModel(absl::string_view name) {
  const size_t slash = name.rfind('/');
  const std::string wanted =
      absl::AsciiStrToLower(slash == absl::string_view::npos ? name : name.substr(slash + 1));
  for (const Shape& shape : kShapes) {
    if (shape.name == wanted) return PublishedModel{ConfigOf(shape), std::string(shape.weights)};
  }
  return absl::NotFoundError(absl::StrCat("no published model is called '", name, "'; known are ",
                                          absl::StrJoin(PublishedModelNames(), ", "),
                                          "; or give a config.json"));
}

}  // namespace sluice::model
