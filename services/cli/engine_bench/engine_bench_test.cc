#include "services/cli/engine_bench/engine_bench.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace sluice::cli {
namespace {

EngineBenchOptions Toy() {
  EngineBenchOptions options;
  options.model.path = "toy";
  options.model.kv_format = "f32";
  options.model.threads = 1;
  options.prompt_tokens = 70;
  options.gen_tokens = 5;
  options.depth_tokens = 40;
  options.batches = {1, 3};
  return options;
}

TEST(EngineBench, TimesEveryPartOnTheToyModel) {
  const auto report = RunEngineBench(Toy(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->prefill.tokens, 70u);
  EXPECT_EQ(report->prefill.steps, 1u);
  ASSERT_EQ(report->decode.size(), 2u);
  EXPECT_EQ(report->decode[0].batch, 1u);
  EXPECT_EQ(report->decode[0].stretch.tokens, 5u);
  EXPECT_EQ(report->decode[1].batch, 3u);
  EXPECT_EQ(report->decode[1].stretch.tokens, 15u);
  EXPECT_EQ(report->decode[1].stretch.steps, 5u);
}

TEST(EngineBench, ManySequencesWhosePromptsNeedManySteps) {
  EngineBenchOptions options = Toy();
  options.batches = {40};
  options.depth_tokens = 100;
  const auto report = RunEngineBench(options, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->decode[0].stretch.tokens, 200u);
}

TEST(EngineBench, RefusesBadFlagsByName) {
  const auto message_of = [](void (*change)(EngineBenchOptions&)) {
    EngineBenchOptions options = Toy();
    change(options);
    const absl::Status status = RunEngineBench(options, nullptr).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const auto names = [&](void (*change)(EngineBenchOptions&), const char* flag) {
    const std::string message = message_of(change);
    EXPECT_NE(message.find(flag), std::string::npos) << message;
  };
  names([](EngineBenchOptions& o) { o.prompt_tokens = 0; }, "--prompt");
  names([](EngineBenchOptions& o) { o.gen_tokens = 0; }, "--gen");
  names([](EngineBenchOptions& o) { o.depth_tokens = 0; }, "--depth");
  names([](EngineBenchOptions& o) { o.repetitions = 0; }, "--repetitions");
  names([](EngineBenchOptions& o) { o.batches = {}; }, "--batch");
  names([](EngineBenchOptions& o) { o.batches = {1, 0}; }, "--batch");
  names([](EngineBenchOptions& o) { o.batches = {5000}; }, "--batch");
  names([](EngineBenchOptions& o) { o.prompt_tokens = 1 << 20; }, "context");
}

Stretch Of(uint64_t tokens, uint64_t steps, uint64_t bytes, absl::Duration took) {
  return {tokens, steps, bytes, took};
}

TEST(EngineBench, MedianIsTheMiddleRate) {
  const absl::Duration second = absl::Seconds(1);
  EXPECT_EQ(MedianByRate({Of(7, 1, 0, second)}).tokens, 7u);
  EXPECT_EQ(MedianByRate({Of(9, 1, 0, second), Of(1, 1, 0, second), Of(4, 1, 0, second)}).tokens,
            4u);
  EXPECT_EQ(MedianByRate({Of(9, 1, 0, second), Of(4, 1, 0, second)}).tokens, 4u);
}

TEST(EngineBench, JsonHasTheContractsKeysAndTheCost) {
  EngineBenchReport report;
  report.options = Toy();
  report.model = "m";
  report.prefill = Of(500, 1, 100, absl::Seconds(2));  // 250 tokens/s
  report.decode = {{1, Of(100, 100, 10000, absl::Seconds(1))},
                   {8, Of(800, 100, 10000, absl::Seconds(2))}};
  const auto parsed = boost::json::parse(EngineBenchJson(report, 3.6)).as_object();
  EXPECT_DOUBLE_EQ(parsed.at("prefill_tps").as_double(), 250);
  EXPECT_DOUBLE_EQ(parsed.at("decode_tps").as_object().at("8").as_double(), 400);
  const auto& cost = parsed.at("cost").as_object();
  const auto& seconds = cost.at("seconds_per_1k_tokens").as_object();
  EXPECT_DOUBLE_EQ(seconds.at("prefill").as_double(), 4);
  EXPECT_DOUBLE_EQ(seconds.at("decode").as_object().at("1").as_double(), 10);
  // 0.001 a second: a million tokens at 250 tokens/s take 4,000 seconds.
  EXPECT_NEAR(cost.at("price_per_1m_tokens").as_object().at("prefill").as_double(), 4, 1e-9);
  const auto& bytes = parsed.at("weight_bytes_per_step").as_object().at("decode").as_object();
  EXPECT_DOUBLE_EQ(bytes.at("1").as_double(), 100);
  EXPECT_DOUBLE_EQ(bytes.at("8").as_double(), 100);
  EXPECT_FALSE(boost::json::parse(EngineBenchJson(report, 0))
                   .as_object()
                   .at("cost")
                   .as_object()
                   .contains("price_per_1m_tokens"));
  EXPECT_NE(EngineBenchTable(report, 0).find("decode batch 8"), std::string::npos);
}

}  // namespace
}  // namespace sluice::cli
