// The result of a load test for programs and for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "services/cli/load/load_runner.h"
#include "services/cli/load/record.h"

namespace sluice::cli {

// What the test was, repeated in its report.
struct LoadDescription {
  std::string dataset;
  std::string model;
  double request_rate = 0;  // infinity: as fast as possible; 0: the trace's own times
  uint32_t max_concurrency = 0;
  uint64_t seed = 0;
  size_t tenants = 1;
  uint32_t left_out = 0;  // requests of a trace that did not fit the context
  std::optional<Goodput> goodput;
};

// One JSON object; its keys are described in the README and stay.
std::string LoadReportJson(const LoadDescription& description, const LoadRun& run);
std::string LoadReportTable(const LoadDescription& description, const LoadRun& run);

// "[######    ] 12/20 3 running 0 failed 812.0 tokens/s", `width` characters of bar.
std::string ProgressLine(const LoadProgress& progress, int width);

}  // namespace sluice::cli
