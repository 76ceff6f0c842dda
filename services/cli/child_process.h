// Processes that `sluice up` and `sluice chaos` start: found beside this program, logged to files,
// reported by their ready files.
#pragma once

#include <sys/types.h>

#include <boost/json/fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace sluice::cli {

// How long a service may take to end after SIGTERM.
inline constexpr absl::Duration kStopGrace = absl::Seconds(40);

// What a service writes into its ready file.
struct ReadyInfo {
  pid_t pid = 0;
  std::string grpc;     // host:port
  std::string metrics;  // http://host:port
  std::string http;     // http://host:port; routers only
};

// One running service.
struct ChildProcess {
  std::string name;  // "decode-0"
  pid_t pid = 0;
  std::string log_path;
  std::string ready_path;
};

// Folder of this program's binaries.
std::string BinaryFolder();

// Starts `binary` of BinaryFolder() with arguments, stdout and stderr appended to `log_path`, in a
// process group of its own, and returns its pid. With `die_with_parent` the kernel ends it
// (SIGTERM) when this process dies. Errors: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED.
absl::StatusOr<pid_t> StartProgram(const std::string& binary, std::vector<std::string> arguments,
                                   const std::string& log_path, bool die_with_parent);

// Starts a service likewise: `binary` of BinaryFolder() with arguments, stdout and stderr appended
// to <folder>/<name>.log, in a process group of its own. With `die_with_parent` the kernel ends it
// (SIGTERM) when this process dies.
absl::StatusOr<ChildProcess> StartChild(const std::string& folder, const std::string& name,
                                        const std::string& binary,
                                        std::vector<std::string> arguments, bool die_with_parent);

// Waits for the ready files of all children. Errors: UNAVAILABLE with the end of its log when one
// has exited; DEADLINE_EXCEEDED; CANCELLED when a blocked SIGINT or SIGTERM is pending.
absl::StatusOr<std::vector<ReadyInfo>> WaitReady(const std::vector<ChildProcess>& children,
                                                 const std::string& folder, const Clock& clock,
                                                 absl::Duration timeout);

// The pid that an entry of an endpoints file names; 0 if it is none.
pid_t PidOf(const boost::json::value& value);

// Whether a process with this pid runs and its program is called sluice-something. A pid of an old
// file may be anybody's.
bool IsService(pid_t pid);

// SIGTERM, then SIGKILL after `grace`, or once a blocked SIGINT or SIGTERM is pending. Returns
// false if a process had to be killed. Children are reaped; of other processes the end counts,
// whether or not their parent has noticed.
bool StopProcesses(const std::vector<pid_t>& pids, const Clock& clock, absl::Duration grace);

// Last lines of a file, for error messages.
std::string TailOf(const std::string& path, size_t bytes = 2000);

// Body of GET `path` of http://host:port, an IPv4 address. Errors: INVALID_ARGUMENT; UNAVAILABLE
// when the answer is not 200 or does not come within a second.
absl::StatusOr<std::string> HttpGetText(const std::string& url, absl::string_view path);

// Waits until GET `url`/ready answers 200. Errors: DEADLINE_EXCEEDED with the last body; CANCELLED
// as above.
absl::Status WaitHttpReady(const std::string& url, const Clock& clock, absl::Duration timeout);

}  // namespace sluice::cli
