#include "services/cli/load/load_report.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <limits>

#include "base/clock.h"

namespace sluice::cli {
namespace {

LoadRun OneRequest() {
  const absl::Time start = FakeClock().Now();
  RequestRecord record;
  record.wanted_tokens = 2;
  record.due = record.sent = start;
  record.OnTokens(1, start + absl::Milliseconds(20));
  record.OnTokens(1, start + absl::Milliseconds(30));
  record.usage.set_prompt_tokens(8);
  record.usage.set_cached_tokens(2);
  record.OnEnd(absl::OkStatus(), start + absl::Milliseconds(500));
  LoadRun run;
  run.records = {record};
  run.duration = absl::Milliseconds(500);
  run.peak_in_flight = 1;
  run.not_sent = 3;
  return run;
}

TEST(LoadReport, JsonKeysAreStable) {
  LoadDescription description;
  description.dataset = "random";
  description.model = "m";
  description.request_rate = 4;
  description.max_concurrency = 16;
  description.tenants = 2;
  description.goodput = *ParseGoodput("ttft:25");
  const auto json = boost::json::parse(LoadReportJson(description, OneRequest())).as_object();
  for (const char* key : {"completed",
                          "failed",
                          "errors",
                          "input_tokens",
                          "output_tokens",
                          "cached_tokens",
                          "recomputed_tokens",
                          "cache_hit_rate",
                          "request_throughput",
                          "input_throughput",
                          "output_throughput",
                          "ttft_ms",
                          "tpot_ms",
                          "itl_ms",
                          "e2e_ms",
                          "send_delay_ms",
                          "failure_ms",
                          "sending_s",
                          "goodput",
                          "dataset",
                          "model",
                          "request_rate",
                          "max_concurrency",
                          "peak_concurrency",
                          "seed",
                          "duration_s",
                          "not_sent",
                          "left_out",
                          "tenants"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"mean", "p50", "p90", "p95", "p99", "max", "count"}) {
    EXPECT_TRUE(json.at("ttft_ms").as_object().contains(key)) << key;
  }
  EXPECT_DOUBLE_EQ(json.at("ttft_ms").as_object().at("p50").as_double(), 20);
  EXPECT_DOUBLE_EQ(json.at("output_throughput").as_double(), 4);
  EXPECT_DOUBLE_EQ(json.at("cache_hit_rate").as_double(), 0.25);
  EXPECT_DOUBLE_EQ(json.at("goodput").as_object().at("per_s").as_double(), 2);
  EXPECT_TRUE(json.at("goodput").as_object().at("itl_ms").is_null());
  EXPECT_EQ(json.at("not_sent").to_number<int>(), 3);
  const auto& tenants = json.at("tenants").as_object();
  EXPECT_EQ(tenants.at("1").as_object().at("completed").to_number<int>(), 1);
  EXPECT_EQ(tenants.at("2").as_object().at("completed").to_number<int>(), 0);
}

TEST(LoadReport, UnlimitedRateAndNoGoodputAreNull) {
  LoadDescription description;
  description.request_rate = std::numeric_limits<double>::infinity();
  const auto json = boost::json::parse(LoadReportJson(description, LoadRun())).as_object();
  EXPECT_TRUE(json.at("request_rate").is_null());
  EXPECT_TRUE(json.at("goodput").is_null());
  EXPECT_DOUBLE_EQ(json.at("output_throughput").as_double(), 0);
}

TEST(LoadReport, TableSaysWhatWasLeftOut) {
  LoadDescription description;
  description.left_out = 5;
  description.tenants = 2;
  const std::string table = LoadReportTable(description, OneRequest());
  for (const char* part : {"5 requests of the trace", "3 requests were not sent", "TTFT",
                           "tenant 2", "as in the trace"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

TEST(LoadReport, ProgressBarFills) {
  LoadProgress progress;
  progress.total = 4;
  progress.in_flight = 2;
  EXPECT_EQ(ProgressLine(progress, 4), "[    ] 0/4  2 running  0 failed  0.0 tokens/s");
  progress.ended = 3;
  progress.output_tokens = 10;
  progress.elapsed = absl::Seconds(2);
  EXPECT_EQ(ProgressLine(progress, 4), "[### ] 3/4  2 running  0 failed  5.0 tokens/s");
}

}  // namespace
}  // namespace sluice::cli
