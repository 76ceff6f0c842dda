// The processes of a cluster that `sluice chaos` may kill, as its endpoints file names them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/cli/chaos/chaos_run.h"

namespace sluice::cli {

struct Process {
  std::string name;  // "decode-0"
  pid_t pid = 0;
  std::string metrics;  // http://host:port
};

// An endpoints file of sluice up.
struct ClusterFile {
  std::string routers;  // as --url takes them
  std::vector<Process> router, cache_manager, prefill, decode;

  // By the name of --kill. Null for another name.
  const std::vector<Process>* Role(absl::string_view role) const;
};

// Errors: INVALID_ARGUMENT naming what is missing.
absl::StatusOr<ClusterFile> ParseClusterFile(absl::string_view json);

// Ends one of `processes` by SIGKILL: the one that runs sequences just now, else the first. Errors:
// FAILED_PRECONDITION when there is none, or a pid is no service of Sluice any more.
absl::StatusOr<Victim> KillBusiest(const std::vector<Process>& processes);

}  // namespace sluice::cli
