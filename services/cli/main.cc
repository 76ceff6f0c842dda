// sluice: the command for people.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/log.h"
#include "rpc/library.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// The exit code after all output is written: a full disk must not look like success.
int FlushStdout(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(
      stderr,
      "sluice: standard output could not be written (%s); what was printed there is incomplete\n",
      std::strerror(errno));
  return code == 0 ? kExitFailed : code;
}

int Main(int argc, char** argv) {
  InitLogging("sluice", LogLevel::kWarning, false);
  CLI::App app("Sluice: a disaggregated LLM serving cluster", "sluice");
  app.require_subcommand(0, 1);  // none is told below: CLI11 would say so of an unknown one, too
  app.set_version_flag("--version", SLUICE_VERSION);
  app.set_help_all_flag("--help-all", "Help of all subcommands");
  Command run;
  AddTextCommands(app, &run);
  AddGenerateCommand(app, &run);
  AddLogitsCommand(app, &run);
  AddChatCommand(app, &run);
  AddDoctorCommand(app, &run);
  AddCalibrateCommand(app, &run);
  AddPerplexityCommand(app, &run);
  AddPlanCommand(app, &run);
  AddQuantizeCommand(app, &run);
  CLI::App* bench = app.add_subcommand("bench", "Measure parts in this process, or a cluster");
  bench->require_subcommand(1);
  AddBenchEngineCommand(*bench, &run);
  AddBenchKernelsCommand(*bench, &run);
  AddBenchServeCommand(*bench, &run);
  AddBenchTransferCommand(*bench, &run);
  AddUpCommand(app, &run);
  AddDownCommand(app, &run);
  AddChaosCommand(app, &run);
  AddCertsCommand(app, &run);
  AddTenantsCommand(app, &run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (run == nullptr) {
    std::fprintf(stderr, "sluice: no command given\n%s", app.help().c_str());
    return kExitUsage;
  }
  const absl::Status status = run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "sluice: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  sluice::rpc::ExitProcess(sluice::cli::FlushStdout(sluice::cli::Main(argc, argv)));
}
