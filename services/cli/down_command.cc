// sluice down: stops what sluice up --detach left running.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "services/cli/child_process.h"
#include "services/cli/command.h"
#include "services/cli/state_folder.h"

namespace sluice::cli {
namespace {

// Only of services that still run: the file may be old, and its pids those of others by now.
void AddPids(const boost::json::value& value, std::vector<pid_t>* pids) {
  if (const pid_t pid = PidOf(value); pid != 0 && IsService(pid)) pids->push_back(pid);
  if (value.is_array()) {
    for (const boost::json::value& entry : value.get_array()) AddPids(entry, pids);
  }
}

absl::Status Down(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  boost::system::error_code error;
  const boost::json::value root = boost::json::parse(text, error);
  if (error || !root.is_object() || !root.get_object().contains("pids") ||
      !root.at("pids").is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not an endpoints file of sluice up"));
  }
  SystemClock clock;
  bool clean = true;
  for (const char* role : {"router", "prefill", "decode", "cache_manager"}) {
    std::vector<pid_t> pids;
    if (const boost::json::value* value = root.at("pids").get_object().if_contains(role))
      AddPids(*value, &pids);
    clean = StopProcesses(pids, clock, kStopGrace) && clean;
  }
  // Logs and the secret; only a folder that sluice up made.
  if (const boost::json::value* folder = root.get_object().if_contains("folder");
      folder != nullptr && folder->is_string()) {
    const std::filesystem::path made(folder->get_string().c_str());
    std::error_code ignored;
    if (absl::StartsWith(made.filename().string(), kStateFolderPrefix))
      std::filesystem::remove_all(made, ignored);
  }
  return clean ? absl::OkStatus()
               : absl::DeadlineExceededError("a process did not stop in time and was killed");
}

}  // namespace

void AddDownCommand(CLI::App& app, Command* run) {
  auto endpoints = std::make_shared<std::string>();
  CLI::App* down =
      app.add_subcommand("down", "Drain and stop a cluster that sluice up --detach started");
  down->add_option("--endpoints", *endpoints, "The file that sluice up wrote")->required();
  down->callback([endpoints, run] { *run = [endpoints] { return Down(*endpoints); }; });
}

}  // namespace sluice::cli
