// Runs every file of scenarios/ and compares its trace line by line.
//   sim_scenarios_test              compares
//   sim_scenarios_test --rewrite    writes what was seen into the files: read the diff before you
//                                   commit it
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "tests/sim/scenario_file.h"

namespace sluice::sim {
namespace {

bool rewrite = false;  // NOLINT: set once in main

#ifdef SLUICE_FAULTS_ENABLED  // the steps are the named fault points
std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> Files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_TEST_DATA "/sim/scenarios")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Scenarios : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(Scenarios, TraceIsAsExpected) {
  const absl::StatusOr<ScenarioFile> file = ParseScenarioFile(ReadFile(GetParam()));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<std::string> seen = TraceOf(file->scenario);
  if (rewrite) {
    std::ofstream out(GetParam());
    out << file->script << "----\n";
    for (const std::string& line : seen) out << line << "\n";
    return;
  }
  EXPECT_EQ(Diff(file->expected, seen), "");
}

INSTANTIATE_TEST_SUITE_P(All, Scenarios, ::testing::ValuesIn(Files()),
                         [](const auto& file) { return file.param.stem().string(); });
#endif

TEST(ScenarioFiles, WhatCannotBeReadIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"cluster roles=PX\n----\n", "line 1: no role X"},
      {"cluster roles=PD speed=3\n----\n", "line 1: unknown word 'speed'"},
      {"cluster roles=PD\nat noon: crash a=0\n----\n", "line 2: 'noon' is no time"},
      {"cluster roles=PD\nat 1ms: burn a=0\n----\n", "line 2: no fault 'burn'"},
      {"cluster roles=PD\nmessage w0 offer: copies=2\n----\n", "line 2: 'w0 offer'"},
      {"cluster roles=PD\n", "no ----"},
  };
  for (const auto& [text, says] : cases) {
    const auto file = ParseScenarioFile(text);
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_NE(file.status().message().find(says), absl::string_view::npos) << file.status();
  }
}

TEST(ScenarioFiles, ADiffShowsWhatDiffers) {
  EXPECT_EQ(Diff({"a", "b"}, {"a", "b"}), "");
  EXPECT_EQ(Diff({"a", "b", "c"}, {"a", "x", "c"}), "  a\n- b\n+ x\n  c\n");
}

}  // namespace
}  // namespace sluice::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  sluice::InitLogging("sim", sluice::LogLevel::kError, false);
  sluice::sim::rewrite = argc > 1 && std::strcmp(argv[1], "--rewrite") == 0;
  return RUN_ALL_TESTS();
}
