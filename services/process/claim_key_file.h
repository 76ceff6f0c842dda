// The claim keys of this process, as their file has them now.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "identity/claim.h"
#include "services/process/watched_files.h"

namespace sluice::services {

// keys() is thread-safe; Refresh is for one thread.
class ClaimKeyFile {
 public:
  // Errors: those of WatchedFiles::Read and ClaimKeys::Parse. `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<ClaimKeyFile>> Load(const std::string& path,
                                                            const Clock& clock);

  std::shared_ptr<const identity::ClaimKeys> keys() const;
  // Reads the file again if it changed. A bad one is logged, and the keys stay.
  void Refresh();

 private:
  ClaimKeyFile(std::string path, const Clock& clock) : path_(std::move(path)), files_(clock) {}
  absl::Status Read();

  const std::string path_;
  WatchedFiles files_;
  mutable Mutex mutex_;
  std::shared_ptr<const identity::ClaimKeys> keys_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::services
