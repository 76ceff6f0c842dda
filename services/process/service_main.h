// main() of every service: flags, configuration, logging, exit code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "config/config.h"
#include "config/yaml.h"

namespace sluice::services {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// A flag that is short for "--set path=value".
struct FlagAlias {
  std::string flag;  // "--model"
  std::string path;  // "model.path"
  std::string help;
};

// What a service adds to --config, --set, --check-config, --print-config, --listen,
// --metrics-listen, --admin-listen and
// --log-level.
struct CommandLine {
  std::string description;
  std::vector<FlagAlias> aliases;
};

struct Flags {
  config::Sources sources;  // flags win over the file
  bool check_config = false;
  bool print_config = false;
};

// Blocks the termination signals, for this thread and all it starts, and reads the flags. Empty
// when the program shall go on; else the exit code, with help or the error printed.
std::optional<int> BeginMain(int argc, char** argv, const CommandLine& command_line, Flags* flags);

// Answers --check-config and --print-config; `yaml` is the complete configuration, printed. Empty
// when the program shall go on; else the exit code.
std::optional<int> AnswerConfigFlags(const Flags& flags, const std::string& yaml);

void StartLogging(const v1::ServiceConfig& config);
// Lets the process open as many files and connections as its hard limit allows, and logs how many.
void UseAllDescriptors();

// The exit code for how a service ended, with the reason printed: kExitUsage for what the operator
// must change (bad configuration, a port in use, missing files), else kExitFailed.
int ExitCodeOf(const absl::Status& status);

// The whole of main(): `load(sources)` gives the complete configuration, `run(config)` serves until
// its end.
template <typename Load, typename Run>
int ServiceMain(int argc, char** argv, const CommandLine& command_line, Load load, Run run) {
  Flags flags;
  if (const auto code = BeginMain(argc, argv, command_line, &flags)) return *code;
  const auto config = load(flags.sources);
  if (!config.ok()) return ExitCodeOf(config.status());
  if (const auto code = AnswerConfigFlags(flags, config::ToYaml(*config))) return *code;
  StartLogging(config->service());
  UseAllDescriptors();
  return ExitCodeOf(run(*config));
}

}  // namespace sluice::services
