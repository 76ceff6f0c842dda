#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "formats/mapped_file.h"

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
              HasSubstr("number of layers is 100000"));
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
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("rope_scaling": {"type": "yarn"})"),
              HasSubstr("'yarn'"));
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("rope_scaling": {"type": "llama3"})"),
              HasSubstr("'factor' is missing"));
  EXPECT_THAT(ErrorOf(R"("hidden_act": "silu")", R"("rope_scaling": [])"), HasSubstr("array"));
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
