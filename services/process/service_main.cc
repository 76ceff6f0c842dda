#include "services/process/service_main.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/log.h"
#include "rpc/signals.h"
#include "services/process/descriptor_limit.h"
#include "services/process/service_process.h"

namespace sluice::services {
namespace {

// As YAML text, whatever is in it.
std::string Quoted(const std::string& value) {
  return absl::StrCat("'", absl::StrReplaceAll(value, {{"'", "''"}}), "'");
}

}  // namespace

std::optional<int> BeginMain(int argc, char** argv, const CommandLine& command_line, Flags* flags) {
  rpc::BlockTerminationSignals();
  std::vector<FlagAlias> all = {
      {"--listen", "service.listen", "host:port of the gRPC services; port 0 takes any"},
      {"--metrics-listen", "service.metrics_listen",
       "host:port of /metrics, /live, /ready and /health"},
      {"--admin-listen", "service.admin_listen", "host:port of the admin service"},
      {"--log-level", "service.log_level", "debug, info, warning or error"},
  };
  all.insert(all.end(), command_line.aliases.begin(), command_line.aliases.end());
  CLI::App app(command_line.description);
  app.set_version_flag("--version", Version());
  std::vector<std::string> overrides;
  std::vector<std::string> values(all.size());
  app.add_option("--config", flags->sources.file,
                 "YAML file; its settings are those of config.proto");
  app.add_option("--set", overrides,
                 "path=value, for example engine.threads=2; wins over the file; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--check-config", flags->check_config, "check the configuration and exit");
  app.add_flag("--print-config", flags->print_config,
               "print the configuration with all defaults and exit");
  for (size_t i = 0; i < all.size(); ++i) {
    app.add_option(all[i].flag, values[i], absl::StrCat(all[i].help, " (", all[i].path, ")"));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (!values[i].empty())
      flags->sources.overrides.push_back(absl::StrCat(all[i].path, "=", Quoted(values[i])));
  }
  flags->sources.overrides.insert(flags->sources.overrides.end(), overrides.begin(),
                                  overrides.end());
  return std::nullopt;
}

std::optional<int> AnswerConfigFlags(const Flags& flags, const std::string& yaml) {
  if (flags.print_config) {
    if (fwrite(yaml.data(), 1, yaml.size(), stdout) != yaml.size() || fflush(stdout) != 0) {
      fputs("standard output could not be written\n", stderr);
      return kExitFailed;
    }
  } else if (flags.check_config) {
    fputs("configuration ok\n", stderr);
  } else {
    return std::nullopt;
  }
  return kExitOk;
}

void StartLogging(const v1::ServiceConfig& config) {
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(config.log_level(), &level);
  InitLogging(config.name(), level, config.log_json());
}

void UseAllDescriptors() {
  const auto limit = RaiseDescriptorLimit();
  if (limit.ok()) {
    SLUICE_LOG(kInfo) << "descriptor limit" << Field("was", limit->before)
                      << Field("now", limit->now);
  } else {
    SLUICE_LOG(kWarning) << "descriptor limit stays as it was"
                         << Field("why", limit.status().ToString());
  }
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
      return kExitUsage;
    default:
      return kExitFailed;
  }
}

}  // namespace sluice::services
