#include "telemetry/metrics.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace sluice::telemetry {
namespace {

TEST(MetricNames, FollowTheRulesAndAreUnique) {
  std::set<std::string> names;
  for (const MetricDef* def : AllMetrics()) {
    EXPECT_EQ(LintMetric(*def), "") << def->name;
    EXPECT_TRUE(names.insert(def->name).second) << def->name << " is there twice";
  }
  EXPECT_GT(names.size(), 40u);
}

TEST(MetricNames, LintFindsEachMistake) {
  const MetricDef good = {"sluice_x_total", MetricType::kCounter, "Counts x."};
  EXPECT_EQ(LintMetric(good), "");
  for (const MetricDef& bad : {
           MetricDef{"x_total", MetricType::kCounter, "Counts x."},
           MetricDef{"sluice_X_total", MetricType::kCounter, "Counts x."},
           MetricDef{"sluice:x_total", MetricType::kCounter, "Counts x."},
           MetricDef{"sluice_x", MetricType::kCounter, "Counts x."},
           MetricDef{"sluice_x_total", MetricType::kGauge, "Counts x."},
           MetricDef{"sluice_x_ms", MetricType::kGauge, "Time of x."},
           MetricDef{"sluice_x_mb_total", MetricType::kCounter, "Counts x."},
           MetricDef{"sluice_x", MetricType::kGauge, ""},
           MetricDef{"sluice_x", MetricType::kGauge, "no sentence"},
           MetricDef{"sluice_x_seconds", MetricType::kHistogram, "Time of x."},
           MetricDef{"sluice_x", MetricType::kGauge, "Of x.", {"request_id"}},
           MetricDef{"sluice_x", MetricType::kGauge, "Of x.", {"role"}},
       }) {
    EXPECT_NE(LintMetric(bad), "") << bad.name;
  }
}

TEST(Registry, SerializesCountersGaugesAndHistograms) {
  Registry registry;
  registry.counter(kKvTransferBytes, {"ucx-shm", "send"}).Add(4096);
  registry.gauge(kKvPages, {"free"}).Set(12);
  registry.histogram(kTtft).Observe(0.03);
  const std::string text = registry.Serialize();
  EXPECT_TRUE(absl::StrContains(
      text, "sluice_kv_transfer_bytes_total{side=\"send\",transport=\"ucx-shm\"} 4096"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, "# TYPE sluice_kv_pages gauge"));
  EXPECT_TRUE(absl::StrContains(text, "sluice_kv_pages{state=\"free\"} 12"));
  EXPECT_TRUE(absl::StrContains(text, "sluice_ttft_seconds_bucket{le=\"0.02\"} 0"));
  EXPECT_TRUE(absl::StrContains(text, "sluice_ttft_seconds_bucket{le=\"0.04\"} 1"));
}

TEST(Registry, AdvanceToFollowsATotalAndNeverGoesBack) {
  Registry registry;
  const Counter counter = registry.counter(kRecomputedTokens);
  counter.AdvanceTo(10);
  counter.AdvanceTo(7);
  counter.AdvanceTo(12);
  EXPECT_TRUE(absl::StrContains(registry.Serialize(), "sluice_recomputed_tokens_total 12"));
}

TEST(Registry, TenantsPastTheLimitFoldToOther) {
  Registry registry;
  for (size_t i = 0; i < Registry::kTenantsMax + 50; ++i) {
    registry.counter(kInputTokens, {absl::StrCat("t", i)}).Add();
  }
  registry.counter(kInputTokens, {"t0"}).Add();
  const std::string text = registry.Serialize();
  EXPECT_TRUE(absl::StrContains(text, "sluice_input_tokens_total{tenant=\"other\"} 50"));
  EXPECT_TRUE(absl::StrContains(text, "sluice_input_tokens_total{tenant=\"t0\"} 2"));
  EXPECT_FALSE(absl::StrContains(text, "tenant=\"t1000\""));
  EXPECT_EQ(registry.TenantLabel("t0"), "t0");
  EXPECT_EQ(registry.TenantLabel("t1049"), "other");
}

TEST(Registry, CollectorsRunBeforeEverySerialize) {
  Registry registry;
  int value = 0;
  registry.OnCollect([&, gauge = registry.gauge(kInFlight)] { gauge.Set(++value); });
  EXPECT_TRUE(absl::StrContains(registry.Serialize(), "sluice_requests_in_flight 1"));
  EXPECT_TRUE(absl::StrContains(registry.Serialize(), "sluice_requests_in_flight 2"));
}

TEST(Registry, ProcessMetricsAreThere) {
  Registry registry;
  RegisterProcessMetrics(registry, "decode", "decode-0", "0.1.0");
  const std::string text = registry.Serialize();
  EXPECT_TRUE(absl::StrContains(
      text, "sluice_build_info{name=\"decode-0\",program=\"decode\",version=\"0.1.0\"} 1"));
  EXPECT_TRUE(absl::StrContains(text, "sluice_process_resident_bytes "));
  EXPECT_FALSE(absl::StrContains(text, "sluice_process_resident_bytes 0\n"));
}

TEST(RegistryDeathTest, WrongLabelsAreABug) {
  Registry registry;
  EXPECT_DEATH(registry.counter(kKvTransferBytes, {"ucx-shm"}), "2 labels");
  EXPECT_DEATH(registry.gauge(kTtft), "no gauge");
}

}  // namespace
}  // namespace sluice::telemetry
