// The folder of one running cluster: logs, ready files and the cache secret. Locked as long as a
// process of the cluster lives, so that the next start can tell what a killed one left behind.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::cli {

// Folders are called so, and nothing else is ever removed.
inline constexpr char kStateFolderPrefix[] = "sluice-up-";

// Move-only. The destructor leaves the folder where it is. Processes started meanwhile inherit the
// lock: it ends with the last of them, however they end, which a pid file could not tell from a pid
// in use by another.
class StateFolder {
 public:
  // Makes a folder in `parent` that only this user may enter.
  static absl::StatusOr<StateFolder> Create(const std::string& parent);
  StateFolder() = default;
  StateFolder(StateFolder&& other) noexcept;
  StateFolder& operator=(StateFolder&& other) noexcept;
  ~StateFolder();

  // Empty for a default-constructed one.
  const std::string& path() const { return path_; }
  void Remove() const;

 private:
  std::string path_;
  int lock_fd_ = -1;
};

// Removes the folders in `parent` that this user's clusters left behind, and returns how many.
// Those of a living process, of other users, and folders without a lock stay.
int RemoveStaleFolders(const std::string& parent);

}  // namespace sluice::cli
