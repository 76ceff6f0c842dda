#include "services/process/watched_files.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/hash.h"

namespace sluice::services {
namespace {

// Longer than the steps in which any file system tells time.
constexpr absl::Duration kSettled = absl::Seconds(2);

}  // namespace

WatchedFiles::Standing WatchedFiles::StandingOf(const std::string& path) const {
  struct stat status {};
  Standing standing;
  if (stat(path.c_str(), &status) != 0) return standing;
  standing.exists = true;
  standing.device = status.st_dev;
  standing.inode = status.st_ino;
  standing.size = status.st_size;
  standing.written = status.st_mtim;
  standing.settled = clock_.WallNow() - absl::TimeFromTimespec(status.st_mtim) > kSettled;
  return standing;
}

void WatchedFiles::Begin() {
  if (begun_) before_ = std::move(now_);
  begun_ = true;
  now_.clear();
  seen_.clear();
}

absl::StatusOr<std::string> WatchedFiles::Read(absl::string_view setting, const std::string& path,
                                               size_t bytes_max) {
  // Before reading, so that what is written meanwhile counts as a change.
  seen_[path] = StandingOf(path);
  absl::StatusOr<std::string> text = ReadWhole(setting, path, bytes_max);
  AppendField(&now_, text.ok() ? *text : text.status().message());
  return text;
}

absl::StatusOr<std::string> WatchedFiles::ReadWhole(absl::string_view setting,
                                                    const std::string& path,
                                                    size_t bytes_max) const {
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.eof() && file.fail()) {
    return absl::NotFoundError(
        absl::StrCat(setting, ": cannot read ", path, ": ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, ": ", path, " has more than ", bytes_max, " bytes"));
  }
  return text;
}

bool WatchedFiles::Changed() const {
  if (!begun_) return true;
  for (const auto& [path, before] : seen_) {
    const Standing now = StandingOf(path);
    const bool same = now.exists == before.exists && now.device == before.device &&
                      now.inode == before.inode && now.size == before.size &&
                      now.written.tv_sec == before.written.tv_sec &&
                      now.written.tv_nsec == before.written.tv_nsec;
    if (!same || !before.settled) return true;
  }
  return false;
}

}  // namespace sluice::services
