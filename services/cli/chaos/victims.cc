#include "services/cli/chaos/victims.h"

#include <signal.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "services/cli/child_process.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

constexpr char kRunning[] = "sluice_engine_running_sequences ";

// A value, or the only element where the file has one process of a role and no list.
std::vector<json::value> ListOf(const json::object& object, const char* role) {
  const json::value* found = object.if_contains(role);
  if (found == nullptr) return {};
  if (!found->is_array()) return {*found};
  return {found->get_array().begin(), found->get_array().end()};
}

absl::StatusOr<std::vector<Process>> ReadRole(const json::object& root, const char* role) {
  const std::vector<json::value> pids = ListOf(root.at("pids").get_object(), role);
  const std::vector<json::value> urls = ListOf(root.at("metrics").get_object(), role);
  if (pids.size() != urls.size())
    return absl::InvalidArgumentError(
        absl::StrCat("it names ", pids.size(), " pids and ", urls.size(), " metrics of ", role));
  std::vector<Process> processes;
  for (size_t i = 0; i < pids.size(); ++i) {
    const pid_t pid = PidOf(pids[i]);
    if (pid == 0 || !urls[i].is_string())
      return absl::InvalidArgumentError(absl::StrCat("process ", i, " of ", role, " has no pid"));
    std::string name = absl::StrCat(role, "-", i);
    if (absl::StartsWith(name, "cache_manager")) name = "cache-manager";
    processes.push_back({std::move(name), pid, urls[i].get_string().c_str()});
  }
  return processes;
}

bool IsObject(const json::object& root, const char* key) {
  const json::value* value = root.if_contains(key);
  return value != nullptr && value->is_object();
}

// Sequences that a worker runs, as its metrics say; 0 when it does not answer.
double RunningSequences(const Process& process) {
  const auto text = HttpGetText(process.metrics, "/metrics");
  if (!text.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, kRunning) &&
        absl::SimpleAtod(line.substr(sizeof(kRunning) - 1), &value))
      return value;
  }
  return 0;
}

}  // namespace

const std::vector<Process>* ClusterFile::Role(absl::string_view role) const {
  if (role == "router") return &router;
  if (role == "cache-manager") return &cache_manager;
  if (role == "prefill") return &prefill;
  return role == "decode" ? &decode : nullptr;
}

absl::StatusOr<ClusterFile> ParseClusterFile(absl::string_view text) {
  boost::system::error_code error;
  const json::value root = json::parse({text.data(), text.size()}, error);
  if (error || !root.is_object() || !IsObject(root.get_object(), "pids") ||
      !IsObject(root.get_object(), "metrics"))
    return absl::InvalidArgumentError("it is not an endpoints file of sluice up");
  const json::object& object = root.get_object();
  ClusterFile file;
  for (const json::value& router : ListOf(object, "routers")) {
    const json::value* url = router.is_object() ? router.get_object().if_contains("grpc") : nullptr;
    if (url == nullptr || !url->is_string())
      return absl::InvalidArgumentError("it has a router without a gRPC address");
    absl::StrAppend(&file.routers, file.routers.empty() ? "" : ",", url->get_string().c_str());
  }
  if (file.routers.empty()) return absl::InvalidArgumentError("it names no router");
  SLUICE_ASSIGN_OR_RETURN(file.router, ReadRole(object, "router"));
  SLUICE_ASSIGN_OR_RETURN(file.cache_manager, ReadRole(object, "cache_manager"));
  SLUICE_ASSIGN_OR_RETURN(file.prefill, ReadRole(object, "prefill"));
  SLUICE_ASSIGN_OR_RETURN(file.decode, ReadRole(object, "decode"));
  return file;
}

absl::StatusOr<Victim> KillBusiest(const std::vector<Process>& processes) {
  if (processes.empty())
    return absl::FailedPreconditionError("the cluster has no process of that role to kill");
  const Process* victim = &processes[0];
  double most = 0;
  for (const Process& process : processes) {
    const double running = RunningSequences(process);
    if (running <= most) continue;
    most = running;
    victim = &process;
  }
  // The file may be old, and its pids those of others by now.
  if (!IsService(victim->pid)) {
    return absl::FailedPreconditionError(absl::StrCat(
        victim->name, ", pid ", victim->pid, ", does not run any more; is the cluster up?"));
  }
  if (kill(victim->pid, SIGKILL) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("cannot kill ", victim->name, ", pid ",
                                                    victim->pid, ": ", std::strerror(errno)));
  }
  return Victim{victim->name, victim->pid};
}

}  // namespace sluice::cli
