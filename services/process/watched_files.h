// Files that are read again when they change, without a word from whoever changes them.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace sluice::services {

// Remembers how files stood when they were read. Owned by one thread; reading blocks.
class WatchedFiles {
 public:
  explicit WatchedFiles(const Clock& clock) : clock_(clock) {}

  // Begins another reading: the next Reads say which files count.
  void Begin();
  // The whole file. `setting` names it in errors. Errors: NOT_FOUND when it cannot be read,
  // INVALID_ARGUMENT when it has more than `bytes_max`.
  absl::StatusOr<std::string> Read(absl::string_view setting, const std::string& path,
                                   size_t bytes_max);
  // Whether a file that was read, or could not be, is another now: replaced, written to, gone or
  // there. True as well before anything was read, and shortly after a write, because a second one
  // could bear the same time: files are looked at more often than they change.
  bool Changed() const;
  // Whether this reading had just what the one before had, errors included.
  bool SameAsBefore() const { return before_.has_value() && *before_ == now_; }

 private:
  struct Standing {
    bool exists = false;
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    timespec written{};
    bool settled = true;
  };
  Standing StandingOf(const std::string& path) const;
  absl::StatusOr<std::string> ReadWhole(absl::string_view setting, const std::string& path,
                                        size_t bytes_max) const;

  const Clock& clock_;
  absl::btree_map<std::string, Standing> seen_;
  bool begun_ = false;
  std::string now_;  // all that this reading had
  std::optional<std::string> before_;
};

}  // namespace sluice::services
