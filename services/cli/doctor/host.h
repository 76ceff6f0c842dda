// What `sluice doctor` reads from this machine. Paths are arguments, so that tests can lay out
// their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "services/cli/doctor/checks.h"

namespace sluice::cli {

// Space for this user of the file system that holds `path`, or of its nearest parent that exists.
absl::StatusOr<Space> SpaceOf(const std::string& path);
// The first line of a small file.
absl::StatusOr<std::string> FirstLine(const std::string& path);
// MemAvailable of a file like /proc/meminfo, in bytes.
absl::StatusOr<uint64_t> AvailableMemory(const std::string& meminfo);
// Whether a folder like /sys/class/infiniband lists a device.
bool HasRdmaDevice(const std::string& folder);
// The folder where models are kept: below `cache_home` (XDG_CACHE_HOME) when that is an absolute
// path, else "~/.cache/sluice" of this user by the password file; empty when there is none.
std::string DefaultCacheFolder(const std::string& cache_home);

// "llama, 30 layers, context 2048, 98 MB" once config, tensors and tokenizer are readable.
absl::StatusOr<std::string> DescribeModel(const std::string& path, uint64_t* weight_bytes);

// Moves bytes between two ends of each transport that this program was built with, over loopback.
// Call before other threads run: UCX sets an environment variable. Cost: about a second.
std::vector<TransportProbe> ProbeTransports(const Clock& clock);

}  // namespace sluice::cli
