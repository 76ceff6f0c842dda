// Scenarios that are written down: a small cluster in which every message takes the same time, what
// is asked of it, what strikes it, and what must be seen.
//
//   # Why this is worth a file.
//   cluster roles=PD pages=16 lease=1s ...          see ScenarioFile in scenario_file.cc
//   request at=0ms prompt=40 tokens=4 ...
//   at 50ms: crash a=0 for=10ms
//   when w1 handoff.fetch_started #1: pause a=1 for=1500ms
//   message w0 offer #2: copies=2                   #0: every one
//   ----
//   the expected trace: one line for every step, up to the moment at which everything heals
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/sim/scenario.h"

namespace sluice::sim {

struct ScenarioFile {
  std::string script;  // everything before the expected trace
  Scenario scenario;
  std::vector<std::string> expected;
};

// Errors: INVALID_ARGUMENT naming the line and what is wrong with it.
absl::StatusOr<ScenarioFile> ParseScenarioFile(absl::string_view text);

// Runs it. A violation is the last line.
std::vector<std::string> TraceOf(const Scenario& scenario);

// The lines that differ, "-" expected and "+" seen, with some around them; empty if none does.
std::string Diff(const std::vector<std::string>& expected, const std::vector<std::string>& seen);

}  // namespace sluice::sim
