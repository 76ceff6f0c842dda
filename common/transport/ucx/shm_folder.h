// Where the segments of one UCX worker are made, so that those of a killed process can be told from
// everybody else's.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::transport {

// A folder PARENT/sluice-ucx.XXXXXX of this process. UCX unlinks a segment as soon as it is filled
// and mapped, so a file in here belongs to an allocation under way, or to one whose process was
// killed. The folder is locked (flock) for as long as it is in use; the kernel drops the lock with
// the process, whatever ends it, and whichever pid namespace it had.
class ShmFolder {
 public:
  // Removes what dead processes of this user left in `parent`, then makes a folder there.
  // Errors: UNAVAILABLE when that cannot be done.
  static absl::StatusOr<std::unique_ptr<ShmFolder>> Create(const std::string& parent = "/dev/shm");
  // Removes the folder and the segments in it. They stay usable where they are open or mapped.
  ~ShmFolder();
  ShmFolder(const ShmFolder&) = delete;
  ShmFolder& operator=(const ShmFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  ShmFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;  // holds the lock
};

}  // namespace sluice::transport
