#include "services/router/usage_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::router {
namespace {

UsageRecord Record(const std::string& id) {
  return {.at = absl::FromUnixMillis(1'700'000'000'123),
          .tenant = "acme",
          .request_id = id,
          .model = "m",
          .outcome = "ok",
          .choices = 2,
          .prompt_tokens = 10,
          .cached_tokens = 8,
          .output_tokens = 3,
          .duration = absl::Milliseconds(45)};
}

std::string Text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(UsageLog, ARecordIsALineOfJson) {
  EXPECT_EQ(ToJson(Record("r\"\n1")),
            R"({"time":"2023-11-14T22:13:20.123Z","tenant":"acme","request_id":"r\"\n1",)"
            R"("model":"m","outcome":"ok","choices":2,"prompt_tokens":10,"cached_tokens":8,)"
            R"("output_tokens":3,"duration_ms":45})");
}

TEST(UsageLog, LinesAreAppendedAndAFileThatWasMovedIsMadeAnew) {
  const std::string path = absl::StrCat(testing::TempDir(), "/usage.jsonl");
  std::filesystem::remove(path);
  std::ofstream(path) << "before\n";
  telemetry::Registry metrics;
  SystemClock clock;
  {
    const auto log = *UsageLog::Open(path, clock, metrics);
    for (int i = 0; i < 100; ++i) log->Write(Record(absl::StrCat("r", i)));
  }
  const std::string text = Text(path);
  EXPECT_TRUE(absl::StartsWith(text, "before\n{"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 101);
  {
    const auto log = *UsageLog::Open(path, clock, metrics);
    std::filesystem::rename(path, path + ".1");
    log->Write(Record("next"));
  }
  EXPECT_EQ(Text(path), ToJson(Record("next")) + "\n");
  EXPECT_EQ(Text(path + ".1"), text);
}

TEST(UsageLog, WhatCannotBeWrittenIsCounted) {
  telemetry::Registry metrics;
  SystemClock clock;
  EXPECT_TRUE(
      absl::IsPermissionDenied(UsageLog::Open("/nonexistent/usage", clock, metrics).status()));
  { (*UsageLog::Open("/dev/full", clock, metrics))->Write(Record("r")); }
  EXPECT_TRUE(absl::StrContains(metrics.Serialize(), "sluice_usage_records_lost_total 1"));
}

}  // namespace
}  // namespace sluice::router
