// A cluster of one's own: `sluice up` as a child.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "services/cli/state_folder.h"

namespace sluice::cli {

// The destructor stops the cluster and waits for its end; if this process is killed, the kernel
// stops it.
class DemoCluster {
 public:
  // Starts `sluice up --demo` with more arguments and waits until it is ready. `clock` must outlive
  // the cluster. Errors: UNAVAILABLE with what it said when it ended at start; DEADLINE_EXCEEDED;
  // CANCELLED when a blocked SIGINT or SIGTERM is pending.
  static absl::StatusOr<std::unique_ptr<DemoCluster>> Start(std::vector<std::string> arguments,
                                                            const Clock& clock);
  ~DemoCluster();
  DemoCluster(const DemoCluster&) = delete;
  DemoCluster& operator=(const DemoCluster&) = delete;

  // Contents of its endpoints file.
  const std::string& endpoints() const { return endpoints_; }

 private:
  explicit DemoCluster(const Clock& clock) : clock_(clock) {}

  const Clock& clock_;
  StateFolder folder_;
  pid_t pid_ = 0;
  std::string endpoints_;
};

}  // namespace sluice::cli
