// The published sums: what fits beside the weights of Kimi K2.6, GLM-4.6, GLM-5 and GLM-5.2.
#include "model/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/plan/published.h"

namespace sluice::model {
namespace {

using ::testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Row {
  const char* model;
  const char* weights;
  const char* kv;
  int32_t gpus;
  double kv_tokens;
  double weights_gib = 0;     // of one GPU, 0: not published
  double checkpoint_gib = 0;  // divided by the GPUs it is 88 and 52 for GLM-5.2
  double tolerance = 0.02;    // of the tokens
};

// Published figures are rounded; those of GLM-5 in FP8 count the weights of the draft layer too.
constexpr Row kRows[] = {
    {"kimi-k2.6", "int4", "bf16", 8, 686e3, 71.8},
    {"kimi-k2.6", "int4", "fp8", 8, 1.37e6, 71.8},
    {"kimi-k2.6", "int4", "mla_fp8", 8, 1.37e6, 71.8},
    {"kimi-k2.6", "int4", "mla_fp8_656", 8, 1.2047e6, 71.8},
    {"glm-5.2", "int4", "mla_fp8_656", 8, 1.18e6, 0, 421},
    {"glm-5.2", "fp8", "mla_fp8_656", 8, 0.59e6, 0, 705, 0.03},
    {"glm-4.6", "bf16", "bf16", 8, 0.97e6, 82.1},
    {"glm-4.6", "bf16", "fp8", 8, 1.94e6, 82.1},
    {"glm-4.6", "fp8", "bf16", 8, 1.90e6, 41.3},
    {"glm-4.6", "fp8", "fp8", 8, 3.80e6, 41.3},
    {"glm-4.6", "fp8", "bf16", 4, 0.49e6, 82.5},
    {"glm-4.6", "fp8", "fp8", 4, 0.97e6, 82.5},
    {"glm-5", "fp8", "mla_fp8_656", 8, 0.58e6, 89.9, 0, 0.03},
    {"glm-5", "fp8", "fp8", 8, 0.65e6, 89.9, 0, 0.03},
};

PlanOptions Options(const Row& row) {
  PlanOptions options;
  options.gpus = options.tp = row.gpus;
  options.weights = row.weights;
  options.kv = row.kv;
  return options;
}

double TermOf(const Plan& plan, absl::string_view name) {
  for (const PlanTerm& term : plan.terms) {
    if (term.name == name) return term.value;
  }
  ADD_FAILURE() << "no term " << name;
  return 0;
}

TEST(Plan, MatchesThePublishedSums) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(absl::StrCat(row.model, " ", row.weights, " ", row.kv, " ", row.gpus));
    const auto model = FindPublishedModel(row.model);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto plan = MakePlan(model->config, Options(row));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_NEAR(static_cast<double>(plan->kv_tokens) / row.kv_tokens, 1.0, row.tolerance);
    if (row.weights_gib > 0) {
      EXPECT_NEAR(static_cast<double>(plan->weight_bytes_per_gpu) / kGiB / row.weights_gib, 1.0,
                  0.015);
    }
    if (row.checkpoint_gib > 0) {
      EXPECT_NEAR(static_cast<double>(plan->checkpoint_bytes) / kGiB / row.checkpoint_gib, 1.0,
                  0.005);
      EXPECT_NEAR(TermOf(*plan, "checkpoint over the GPUs of a copy") / kGiB,
                  row.checkpoint_gib / row.gpus, 0.3);
    }
  }
}

TEST(Plan, TheTermsAreTheSum) {
  const auto model = FindPublishedModel("moonshotai/Kimi-K2.6");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->weights, "int4");
  PlanOptions options;
  options.weights = "int4";
  const auto plan = MakePlan(model->config, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  double weights = 0;
  for (const PlanTerm& term : plan->terms) {
    if (absl::StrContains(term.name, "weights per GPU: ")) weights += term.value;
  }
  EXPECT_NEAR(weights, TermOf(*plan, "weights per GPU"), 1);
  EXPECT_NEAR(TermOf(*plan, "parameters: routed experts"), 1014.7e9, 0.1e9);
  EXPECT_NEAR(TermOf(*plan, "parameters"), 1026.4e9, 0.1e9);
  EXPECT_NEAR(TermOf(*plan, "memory fraction"), 0.8417, 1e-4);
  EXPECT_EQ(TermOf(*plan, "KV of a token on a GPU"), 70272);
  const double pool = TermOf(*plan, "free before loading") * plan->memory_fraction - weights;
  EXPECT_NEAR(TermOf(*plan, "KV pool per GPU"), pool, 1);
  EXPECT_EQ(plan->kv_tokens, static_cast<int64_t>(pool / 70272));
}

TEST(Plan, IndexKeysOnlyWhereTheyAreComputedAndDraftLayersChangeTheSum) {
  const ModelConfig config = FindPublishedModel("glm-5.2")->config;
  PlanOptions options;
  options.weights = "int4";
  options.kv = "mla_fp8_656";
  EXPECT_EQ(MakePlan(config, options)->kv_bytes_per_token, 61464u);
  const double beside =
      TermOf(*MakePlan(config, options), "KV tokens, index keys only where computed");
  options.index_every_layer = false;
  EXPECT_EQ(MakePlan(config, options)->kv_bytes_per_token, 53940u);
  EXPECT_EQ(static_cast<double>(MakePlan(config, options)->kv_tokens), beside);
  EXPECT_NEAR(beside / 1.35e6, 1.0, 0.02);
  options.index_every_layer = true;
  options.mtp = true;
  EXPECT_EQ(MakePlan(config, options)->kv_bytes_per_token, 62252u);
  EXPECT_NEAR(static_cast<double>(MakePlan(config, options)->kv_tokens) / 1.174e6, 1.0, 0.02);
}

TEST(Plan, HeadsDivideButAreNeverSplit) {
  const ModelConfig config = FindPublishedModel("glm-4.6")->config;
  PlanOptions options;
  options.gpus = options.tp = 16;
  EXPECT_EQ(MakePlan(config, options)->kv_bytes_per_token, 47104u);  // one head as at 8
  options.tp = 8;
  const auto plan = MakePlan(config, options);
  EXPECT_EQ(plan->kv_bytes_per_token, 47104u);
  EXPECT_EQ(plan->copies, 2);
}

TEST(Plan, WhatDoesNotFitHasNoTokens) {
  PlanOptions options;
  options.gpu = "h100";
  options.weights = "int4";
  const auto plan = MakePlan(FindPublishedModel("kimi-k2.6")->config, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LT(plan->kv_pool_bytes_per_gpu, 0);
  EXPECT_EQ(plan->kv_tokens, 0);
}

TEST(Plan, ErrorsSayWhatIsPossible) {
  const ModelConfig config = FindPublishedModel("glm-4.6")->config;
  const auto error = [&](const auto& change) {
    PlanOptions options;
    change(options);
    return std::string(MakePlan(config, options).status().message());
  };
  EXPECT_THAT(error([](PlanOptions& o) { o.gpu = "v100"; }), HasSubstr("known are h100, h200"));
  EXPECT_THAT(error([](PlanOptions& o) { o.weights = "q4"; }), HasSubstr("known are bf16, fp8"));
  EXPECT_THAT(error([](PlanOptions& o) { o.kv = "mla_fp8"; }), HasSubstr("glm-4.6 has f32, bf16"));
  EXPECT_THAT(error([](PlanOptions& o) { o.tp = 3; }), HasSubstr("tp 3 must divide"));
  EXPECT_THAT(error([](PlanOptions& o) { o.memory_fraction = 1.5; }), HasSubstr("(0, 1]"));
  EXPECT_THAT(std::string(FindPublishedModel("gpt-5").status().message()),
              HasSubstr("known are kimi-k2-instruct"));
  for (const std::string& name : PublishedModelNames()) {
    EXPECT_TRUE(ValidateConfig(FindPublishedModel(name)->config).ok()) << name;
  }
}

}  // namespace
}  // namespace sluice::model
