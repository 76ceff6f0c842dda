#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "formats/mapped_file.h"
#include "model/tensor_roles.h"

namespace sluice::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::string_view kGood = R"({
  "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 5000.0,
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "torch_dtype": "bfloat16"})";

// kGood with `from` replaced by `to`; `generation` is the text of generation_config.json or empty.
absl::StatusOr<ModelConfig> Parse(absl::string_view from, absl::string_view to,
                                  absl::string_view generation = "") {
  const std::string text = absl::StrReplaceAll(kGood, {{from, to}});
  EXPECT_TRUE(from.empty() || text != kGood) << from;
  const auto json = formats::ParseJson(text, "config.json");
  if (!json.ok()) return json.status();
  if (generation.empty()) return ConfigFromHf(*json, nullptr, "m");
  const auto generation_json = formats::ParseJson(generation, "generation_config.json");
  return ConfigFromHf(*json, &*generation_json, "m");
}

std::string ErrorOf(absl::string_view from, absl::string_view to) {
  const auto config = Parse(from, to);
  EXPECT_FALSE(config.ok()) << from << " -> " << to;
  return std::string(config.status().message());
}

TEST(HfConfig, ReadsTheOldSpellingAndFillsDefaults) {
  const auto config = Parse("", "");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, Family::kLlama);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->q_width(), 64);
  EXPECT_EQ(config->kv_width(), 32);
  EXPECT_EQ(config->rope.theta, 5000.0);
  EXPECT_EQ(config->norm_eps, 1e-5f);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_THAT(config->bos_tokens, ElementsAre(1));
  EXPECT_THAT(config->eos_tokens, ElementsAre(2));
  EXPECT_EQ(Parse(R"("num_key_value_heads": 2,)", "")->kv_heads, 4);
  EXPECT_EQ(Parse(R"("model_type": "llama")", R"("model_type":"qwen3","head_dim":48)")->head_dim,
            48);
}

TEST(HfConfig, OldAndNewRopeSpellingsAreTheSame) {
  const absl::string_view params =
      R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64})";
  const absl::string_view theta = R"("rope_theta": 5000.0)";
  const auto with_type =
      Parse(theta, absl::StrCat(theta, R"(, "rope_scaling": {"type": "llama3", )", params));
  const auto with_rope_type =
      Parse(theta, absl::StrCat(theta, R"(, "rope_scaling": {"rope_type": "llama3", )", params));
  const auto in_new = Parse(
      theta,
      absl::StrCat(R"("rope_parameters": {"rope_theta": 5000.0, "rope_type": "llama3", )", params));
  for (const auto& config : {with_type, with_rope_type, in_new}) {
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.scaling, RopeConfig::Scaling::kLlama3);
    EXPECT_EQ(config->rope.factor, 8.0);
    EXPECT_EQ(ConfigDigest(*config), ConfigDigest(*in_new));
  }
  const auto plain = Parse(theta, absl::StrCat(theta, R"(, "rope_scaling": null)"));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(ConfigDigest(*plain), ConfigDigest(*Parse("", "")));
  EXPECT_NE(ConfigDigest(*plain), ConfigDigest(*in_new));
}

TEST(HfConfig, EndTokensOfBothFilesAreOneSet) {
  const auto config =
      Parse(R"("eos_token_id": 2)", R"("eos_token_id": [7, 2])", R"({"eos_token_id": [2, 3]})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_tokens, ElementsAre(2, 3, 7));
  EXPECT_TRUE(Parse(R"("bos_token_id": 1)", R"("bos_token_id": null)")->bos_tokens.empty());
}

TEST(HfConfig, ErrorsNameTheKeyAndTheValue) {
  EXPECT_THAT(ErrorOf(R"("hidden_size": 64,)", ""), HasSubstr("m/config.json: 'hidden_size' is"));
  EXPECT_THAT(ErrorOf(R"("hidden_size": 64)", R"("hidden_size": "64")"), HasSubstr("string"));
  EXPECT_THAT(ErrorOf(R"("hidden_size": 64)", R"("hidden_size": -1)"), HasSubstr("-1"));
  EXPECT_THAT(ErrorOf(R"("hidden_size": 64)", R"("hidden_size": 4294967360)"),
              HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf(R"("num_hidden_layers": 2)", R"("num_hidden_layers": 100000)"),
              HasSubstr("'num_hidden_layers' is 100000, possible are 1 to"));
  EXPECT_THAT(ErrorOf(R"("num_attention_heads": 4)", R"("num_attention_heads": 0)"),
              HasSubstr("heads is 0"));
  EXPECT_THAT(ErrorOf(R"("num_key_value_heads": 2)", R"("num_key_value_heads": 3)"),
              HasSubstr("do not fit"));
  EXPECT_THAT(ErrorOf(R"("rms_norm_eps": 1e-05)", R"("rms_norm_eps": 0)"), HasSubstr("epsilon"));
  EXPECT_THAT(ErrorOf(R"("rope_theta": 5000.0)", R"("rope_theta": -1)"), HasSubstr("theta"));
  EXPECT_THAT(ErrorOf(R"("eos_token_id": 2)", R"("eos_token_id": 100)"), HasSubstr("token 100"));
  EXPECT_THAT(ErrorOf(R"("eos_token_id": 2)", R"("eos_token_id": "x")"), HasSubstr("eos_token_id"));
  EXPECT_THAT(ErrorOf(R"("model_type": "llama")", R"("model_type": "bert")"), HasSubstr("'bert'"));
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("hidden_act": "gelu")"), HasSubstr("gelu"));
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("attention_bias": true)"),
              HasSubstr("'attention_bias' is on"));
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("rope_scaling": {"type": "longrope"})"),
              HasSubstr("'longrope'; built are 'default', 'llama3' and 'yarn'"));
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("rope_scaling": {"type": "llama3"})"),
              HasSubstr("'factor' is missing"));
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("rope_scaling": [])"), HasSubstr("array"));
}

// Configs of the published families, shortened to what is read.
constexpr absl::string_view kMoeFields = R"("num_hidden_layers": 4, "hidden_size": 64,
  "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100,
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 50000.0,
  "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
  "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
  "norm_topk_prob": true, "first_k_dense_replace": 1, "scoring_func": "sigmoid",
  "topk_method": "noaux_tc", "hidden_act": "silu", "attention_bias": false)";
constexpr absl::string_view kMlaFields = R"("q_lora_rank": 48, "kv_lora_rank": 64,
  "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 16, "head_dim": 64)";
constexpr absl::string_view kKimiRope = R"("rope_scaling": {"type": "yarn", "factor": 64.0,
  "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
  "mscale_all_dim": 1.0})";
constexpr absl::string_view kDsaFields =
    R"("index_n_heads": 4, "index_head_dim": 64, "index_topk": 16)";

absl::StatusOr<ModelConfig> ParseText(absl::string_view text) {
  const auto json = formats::ParseJson(text, "config.json");
  if (!json.ok()) return json.status();
  return ConfigFromHf(*json, nullptr, "m");
}

std::string Kimi(absl::string_view more = "") {
  return absl::StrCat(R"({"model_type": "kimi_k2", )", kMoeFields, ",", kMlaFields, ",", kKimiRope,
                      more, "}");
}

std::string Glm5(absl::string_view more) {
  return absl::StrCat(R"({"model_type": "glm_moe_dsa", )", kMoeFields, ",", kMlaFields, ",",
                      kDsaFields, more, "}");
}

TEST(HfFamilies, KimiIsLatentAttentionWithSigmoidExperts) {
  const auto config = ParseText(Kimi());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, Family::kDeepseekV3);
  ASSERT_TRUE(config->mla && config->moe && !config->dsa);
  EXPECT_EQ(config->head_dim, 96);  // not the file's head_dim
  EXPECT_EQ(config->rotary_dim(), 64);
  EXPECT_TRUE(config->rope.interleaved);
  EXPECT_THAT(config->moe->sparse, ElementsAre(false, true, true, true));
  EXPECT_TRUE(config->moe->correction_bias);
  EXPECT_EQ(config->moe->scaling, 2.5f);
  EXPECT_EQ(config->moe->shared_intermediate, 32);
  // The softmax scale of factor 64: 96^-0.5 times the square of 0.1 ln 64 + 1.
  EXPECT_NEAR(config->softmax_scale(), std::pow(0.1 * std::log(64.0) + 1, 2) / std::sqrt(96.0),
              1e-7);
  EXPECT_EQ(config->rope.magnitude, 1.0);
}

// Some models of the family make queries in one step: q_lora_rank null.
TEST(HfFamilies, LatentAttentionMayHaveDirectQueries) {
  const auto config =
      ParseText(absl::StrReplaceAll(Kimi(), {{R"("q_lora_rank": 48)", R"("q_lora_rank": null)"}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->mla->q_lora_rank, 0);
  EXPECT_TRUE(TensorExists({TensorRole::kQ, 1, 0}, *config));
  EXPECT_EQ(TensorShapeOf(TensorRole::kQ, *config).rows, 4 * 96);
  EXPECT_EQ(RotatedRowsOf(TensorRole::kQ, *config).first, 32);
  for (TensorRole role : {TensorRole::kQA, TensorRole::kQANorm, TensorRole::kQB}) {
    EXPECT_FALSE(TensorExists({role, 1, 0}, *config));
  }
  EXPECT_FALSE(TensorExists({TensorRole::kQ, 1, 0}, *ParseText(Kimi())));
}

TEST(HfFamilies, AWrapperNestsTheTextModel) {
  const auto config =
      ParseText(absl::StrCat(R"({"model_type": "kimi_k25", "text_config": )", Kimi(), "}"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(ConfigDigest(*config), ConfigDigest(*ParseText(Kimi())));
  EXPECT_THAT(
      std::string(ParseText(R"({"model_type": "kimi_k25", "text_config": 3})").status().message()),
      HasSubstr("'text_config' is integer"));
}

TEST(HfFamilies, Glm4RotatesHalfAHeadAndHasBiases) {
  const std::string text = absl::StrReplaceAll(
      absl::StrCat(R"({"model_type": "glm4_moe", "head_dim": 32, "use_qk_norm": true, )",
                   kMoeFields, R"(, "partial_rotary_factor": 0.5})"),
      {{R"("attention_bias": false)", R"("attention_bias": true)"}});
  const auto config = ParseText(text);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qkv_bias && config->qk_norm && !config->mla);
  EXPECT_EQ(config->rotary_dim(), 16);
  EXPECT_EQ(InverseFrequencies(*config).size(), 8u);
  const auto air =
      ParseText(absl::StrReplaceAll(text, {{"\"use_qk_norm\": true", "\"use_qk_norm\": false"}}));
  EXPECT_FALSE(air->qk_norm);
  EXPECT_NE(ConfigDigest(*air), ConfigDigest(*config));
}

TEST(HfFamilies, Qwen3MoeRoutesBySoftmax) {
  const auto config = ParseText(absl::StrReplaceAll(
      kGood, {{R"("model_type": "llama")",
               R"("model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32, "norm_topk_prob": true, "mlp_only_layers": [0])"}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->moe->scoring, Scoring::kSoftmax);
  EXPECT_FALSE(config->moe->correction_bias);
  EXPECT_EQ(config->moe->shared_intermediate, 0);
  EXPECT_THAT(config->moe->sparse, ElementsAre(false, true));
}

TEST(HfFamilies, IndexersFollowTheListTheSchedulesOrThePattern) {
  const auto computes = [](absl::string_view more) {
    const auto config = ParseText(Glm5(more));
    EXPECT_TRUE(config.ok()) << config.status();
    return config->dsa->computes;
  };
  EXPECT_THAT(computes(""), ElementsAre(true, true, true, true));
  EXPECT_THAT(computes(R"(, "indexer_types": ["full", "shared", "full", "shared"])"),
              ElementsAre(true, false, true, false));
  EXPECT_THAT(computes(R"(, "index_topk_pattern": "FSSF")"), ElementsAre(true, false, false, true));
  EXPECT_THAT(computes(R"(, "index_topk_freq": 2, "index_skip_topk_offset": 2)"),
              ElementsAre(true, true, false, true));
}

// GLM-5.2: layers 0, 1, 2, 6, 10, ..., 74 compute.
TEST(HfFamilies, ThePublishedScheduleHas21Of78Indexers) {
  const std::string text =
      absl::StrReplaceAll(Glm5(R"(, "index_topk_freq": 4, "index_skip_topk_offset": 3)"),
                          {{R"("num_hidden_layers": 4)", R"("num_hidden_layers": 78)"}});
  const auto config = ParseText(text);
  ASSERT_TRUE(config.ok()) << config.status();
  int count = 0;
  for (int32_t i = 0; i < 78; ++i) {
    EXPECT_EQ(config->has_indexer(i), i < 3 || i % 4 == 2) << i;
    count += config->has_indexer(i);
  }
  EXPECT_EQ(count, 21);
}

TEST(HfFamilies, ErrorsNameTheFieldAndWhatIsPossible) {
  const auto error = [](absl::string_view from, absl::string_view to) {
    const std::string text = absl::StrReplaceAll(
        Glm5(R"(, "indexer_types": ["full", "full", "full", "full"])"), {{from, to}});
    EXPECT_NE(text, Glm5("")) << from;
    const auto config = ParseText(text);
    EXPECT_FALSE(config.ok()) << from << " -> " << to;
    return std::string(config.status().message());
  };
  EXPECT_THAT(error("glm_moe_dsa", "bert"), HasSubstr("model_type 'bert'; built are llama, qwen3"));
  EXPECT_THAT(error("kv_lora_rank", "x"), HasSubstr("'kv_lora_rank' is missing"));
  EXPECT_THAT(error("\"kv_lora_rank\": 64", "\"kv_lora_rank\": 0"), HasSubstr("kv_lora_rank is 0"));
  EXPECT_THAT(error("\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 63"), HasSubstr("even"));
  EXPECT_THAT(error("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"),
              HasSubstr("experts per token is 9, possible are 1 to 8"));
  EXPECT_THAT(error("\"n_group\": 1", "\"n_group\": 3"), HasSubstr("3 equal groups"));
  EXPECT_THAT(error("\"topk_group\": 1", "\"topk_group\": 2"), HasSubstr("topk_group is 2"));
  EXPECT_THAT(error("sigmoid", "relu"), HasSubstr("'scoring_func' is 'relu'; only 'sigmoid'"));
  EXPECT_THAT(error("noaux_tc", "greedy"), HasSubstr("'topk_method' is 'greedy'"));
  EXPECT_THAT(error("first_k_dense_replace", "x"), HasSubstr("'first_k_dense_replace' is missing"));
  EXPECT_THAT(error(R"(["full", )", "["), HasSubstr("indexer_types has 3 entries for 4 layers"));
  EXPECT_THAT(error(R"(["full", )", R"(["half", )"), HasSubstr("neither 'full' nor 'shared'"));
  EXPECT_THAT(error("\"index_head_dim\": 64", "\"index_head_dim\": 32"),
              HasSubstr("index_head_dim 32"));
  EXPECT_THAT(error("\"n_shared_experts\": 1", "\"n_shared_experts\": 2147483647"),
              HasSubstr("n_shared_experts"));
  EXPECT_THAT(error("\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": -1"),
              HasSubstr("routed_scaling_factor is -1"));
}

TEST(HfQuantization, LayoutsThatWouldBeMisreadAreRefused) {
  const auto error = [](absl::string_view quantization) {
    return std::string(ParseText(Kimi(absl::StrCat(R"(, "quantization_config": )", quantization)))
                           .status()
                           .message());
  };
  EXPECT_EQ(error(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"), "");
  EXPECT_THAT(error(R"({"quant_method": "fp8", "weight_block_size": [64, 64]})"),
              HasSubstr("weight_block_size"));
  EXPECT_THAT(error(R"({"quant_method": "awq"})"),
              HasSubstr("'quant_method' is 'awq'; built are 'fp8'"));
  EXPECT_EQ(error(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})"), "");
  const auto group = [&](absl::string_view weights) {
    return error(absl::StrCat(
        R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": )",
        weights, "}}}"));
  };
  EXPECT_EQ(group(R"({"num_bits": 4, "type": "int", "group_size": 32, "symmetric": true})"), "");
  EXPECT_EQ(group(R"({"num_bits": 8, "type": "float", "strategy": "channel"})"), "");
  EXPECT_EQ(group(R"({"num_bits": 4, "type": "float", "group_size": 16})"), "");
  EXPECT_THAT(group(R"({"num_bits": 4, "type": "int", "group_size": 128})"),
              HasSubstr("groups of 128"));
  EXPECT_THAT(group(R"({"num_bits": 4, "type": "int", "group_size": 32, "symmetric": false})"),
              HasSubstr("asymmetric"));
}

// A small GGUF file, one string of it replaced by another of the same length.
absl::StatusOr<ModelConfig> FromGguf(absl::string_view from = "", absl::string_view to = "") {
  const std::string path =
      absl::StrCat(SLUICE_TEST_DATA, "/fuzz/corpus/model_config_fuzz/llama.gguf");
  const auto text = formats::ReadTextFile(path, 1 << 20);
  const std::string bytes = absl::StrReplaceAll(*text, {{from, to}});
  EXPECT_TRUE(from.empty() || bytes != *text) << from;
  const auto file = formats::GgufFile::Parse(
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "x.gguf");
  if (!file.ok()) return file.status();
  return ConfigFromGguf(*file, "x");
}

TEST(GgufConfig, ReadsMetadataAndRopeDivisors) {
  const auto config = FromGguf();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, Family::kLlama);
  EXPECT_EQ(config->hidden, 16);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->vocabulary, 4);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_THAT(config->eos_tokens, ElementsAre(1));
  EXPECT_EQ(config->rope.divisors, std::vector<float>(8, 1.0f));
}

TEST(GgufConfig, ErrorsNameTheFileAndTheKey) {
  const auto error = [](absl::string_view from, absl::string_view to) {
    return std::string(FromGguf(from, to).status().message());
  };
  EXPECT_THAT(error("architecture", "architecturf"), HasSubstr("'general.architecture'"));
  EXPECT_THAT(error("block_count", "block_counu"), HasSubstr("'llama.block_count'"));
  EXPECT_THAT(error("token_embd.weight", "token_embx.weight"), HasSubstr("token_embd.weight"));
  EXPECT_THAT(error("feed_forward_length", "rope.dimension_cout"),
              HasSubstr("feed_forward_length"));
}

TEST(Rope, PlainFrequenciesFallGeometrically) {
  const auto config = Parse("", "");
  const std::vector<float> frequencies = InverseFrequencies(*config);
  ASSERT_EQ(frequencies.size(), 8u);
  EXPECT_EQ(frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(frequencies[4], static_cast<float>(1.0 / std::sqrt(5000.0)));
}

// Kimi K2's numbers: width 64, theta 50000, original context 4096. Betas of 1 make a step between
// pairs 19 and 20; betas 32 and 1 a ramp from pair 8 to 20.
TEST(Rope, YarnStretchesPairsBehindTheRamp) {
  ModelConfig config = *ParseText(Kimi());
  const std::vector<float> ramp = InverseFrequencies(config);
  ASSERT_EQ(ramp.size(), 32u);
  config.rope.beta_fast = 1;
  const std::vector<float> step = InverseFrequencies(config);
  for (size_t i = 0; i < 32; ++i) {
    const double plain = std::pow(50000.0, -static_cast<double>(i) / 32);
    EXPECT_FLOAT_EQ(step[i], static_cast<float>(i <= 19 ? plain : plain / 64)) << i;
    const double share = std::min(std::max((static_cast<double>(i) - 8) / 12, 0.0), 1.0);
    EXPECT_FLOAT_EQ(ramp[i], static_cast<float>(plain * (1 - share) + plain / 64 * share)) << i;
  }
}

TEST(Rope, Llama3KeepsShortStretchesLongAndBlendsBetween) {
  ModelConfig config = *Parse("", "");
  const std::vector<float> plain = InverseFrequencies(config);
  config.rope.scaling = RopeConfig::Scaling::kLlama3;
  config.rope.factor = 8.0;
  config.rope.low_freq_factor = 1.0;
  config.rope.high_freq_factor = 4.0;
  config.rope.original_context = 64.0;
  const std::vector<float> scaled = InverseFrequencies(config);
  EXPECT_EQ(scaled[0], plain[0]);            // wavelength 6.3 < 16
  EXPECT_FLOAT_EQ(scaled[7], plain[7] / 8);  // wavelength 10834 > 64
  // Pair 2: wavelength 6.2832 * 5000^(1/4) = 52.84 lies between 16 and 64; blend (64 / 52.84 - 1) /
  // 3 = 0.0704.
  const double blend = (64.0 * plain[2] / (2 * M_PI) - 1.0) / 3.0;
  EXPECT_NEAR(blend, 0.0704, 1e-4);
  EXPECT_FLOAT_EQ(scaled[2], static_cast<float>(plain[2] * (blend + (1 - blend) / 8)));
  config.rope.scaling = RopeConfig::Scaling::kNone;
  config.rope.divisors.assign(8, 2.0f);
  EXPECT_FLOAT_EQ(InverseFrequencies(config)[3], plain[3] / 2);
  config.rope.divisors.resize(7);
  EXPECT_FALSE(ValidateConfig(config).ok());
}

}  // namespace
}  // namespace sluice::model
