// The command line that all services share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace sluice::services {

// A flag that is short for "--set path=value".
struct FlagAlias {
  std::string flag;  // "--model"
  std::string path;  // "model.path"
  std::string help;
};

struct Flags {
  config::Sources sources;  // flags win over the file
  bool check_config = false;
  bool print_config = false;
};

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// --config, --set, --check-config, --print-config, --listen, --metrics-listen, --admin-listen, --log-level, and `aliases`.
// Empty when the program shall go on; else the exit code, with help or the error printed.
std::optional<int> ParseFlags(int argc, char** argv, const std::string& description, const std::vector<FlagAlias>& aliases,
                              Flags* flags);

// What --check-config and --print-config ask for, once the configuration is complete; `yaml` is its printed form. Empty when the
// program shall go on.
std::optional<int> AnswerConfigFlags(const Flags& flags, const std::string& yaml);

// Prints why the program cannot start. Returns kExitUsage for what the operator must change (bad configuration, a port in use,
// missing files), else kExitFailed.
int ReportStartFailure(const absl::Status& status);

}  // namespace sluice::services
