#include "services/cli/chaos/demo_cluster.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "services/cli/child_process.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kStartTimeout = absl::Minutes(3);
// Three times kStopGrace: routers, workers and the manager, one group after the other.
constexpr absl::Duration kStopTimeMax = absl::Minutes(2);

}  // namespace

absl::StatusOr<std::unique_ptr<DemoCluster>> DemoCluster::Start(std::vector<std::string> arguments,
                                                                const Clock& clock) {
  std::unique_ptr<DemoCluster> cluster(new DemoCluster(clock));
  std::error_code error;
  SLUICE_ASSIGN_OR_RETURN(
      cluster->folder_, StateFolder::Create(std::filesystem::temp_directory_path(error).string()));
  const std::string& folder = cluster->folder_.path();
  // The endpoints file appears whole when the cluster is ready, as a service's ready file does.
  const std::string file = absl::StrCat(folder, "/endpoints.json");
  arguments.insert(arguments.begin(), {"up", "--demo", "--endpoints", file});
  ChildProcess up{"sluice up", 0, absl::StrCat(folder, "/up.log"), file};
  SLUICE_ASSIGN_OR_RETURN(up.pid, StartProgram("sluice", arguments, up.log_path, true));
  cluster->pid_ = up.pid;
  SLUICE_RETURN_IF_ERROR(WaitReady({up}, folder, clock, kStartTimeout).status());
  SLUICE_ASSIGN_OR_RETURN(cluster->endpoints_, ReadTextFile(file));
  return cluster;
}

DemoCluster::~DemoCluster() {
  if (pid_ > 0) StopProcesses({pid_}, clock_, kStopTimeMax);
  folder_.Remove();
}

}  // namespace sluice::cli
