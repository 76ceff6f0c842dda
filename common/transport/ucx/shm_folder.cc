#include "transport/ucx/shm_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"

namespace sluice::transport {
namespace {

constexpr absl::string_view kFolderPrefix = "sluice-ucx.";
// As UCX names its segments.
constexpr absl::string_view kSegmentPrefix = "ucx_shm_posix_";
// A sweeper may take a new folder away before it is locked: then another one is made.
constexpr int kTriesMax = 8;

std::vector<std::string> NamesIn(const std::string& path, absl::string_view prefix) {
  std::vector<std::string> names;
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder)) {
    if (absl::StartsWith(entry->d_name, prefix)) names.emplace_back(entry->d_name);
  }
  closedir(folder);
  return names;
}

// A descriptor of the folder that holds its lock, or -1: somebody else does, or it is not a folder
// of this user, or it is gone.
int OpenLocked(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat opened {};
  struct stat named {};
  const bool ours = fstat(fd, &opened) == 0 && opened.st_uid == geteuid() &&
                    flock(fd, LOCK_EX | LOCK_NB) == 0 && lstat(path.c_str(), &named) == 0 &&
                    named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
  if (ours) return fd;
  close(fd);
  return -1;
}

// Only segments are removed: a folder with anything else in it stays. Returns their bytes.
uint64_t RemoveSegments(const std::string& path) {
  uint64_t bytes = 0;
  for (const std::string& name : NamesIn(path, kSegmentPrefix)) {
    const std::string file = absl::StrCat(path, "/", name);
    struct stat found {};
    if (lstat(file.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    if (unlink(file.c_str()) == 0) bytes += static_cast<uint64_t>(found.st_blocks) * 512;
  }
  rmdir(path.c_str());
  return bytes;
}

void Sweep(const std::string& parent) {
  for (const std::string& name : NamesIn(parent, kFolderPrefix)) {
    const std::string path = absl::StrCat(parent, "/", name);
    const int fd = OpenLocked(path);
    if (fd < 0) continue;
    const uint64_t bytes = RemoveSegments(path);
    close(fd);
    if (bytes == 0) continue;
    SLUICE_LOG(kInfo) << "removed shared memory that a killed process left" << Field("folder", path)
                      << Field("bytes", bytes);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmFolder>> ShmFolder::Create(const std::string& parent) {
  Sweep(parent);
  for (int tries = 0; tries < kTriesMax; ++tries) {
    std::string path = absl::StrCat(parent, "/", kFolderPrefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot make a folder for shared memory in ",
                                                 parent, ": ", strerror(errno)));
    }
    const int fd = OpenLocked(path);
    if (fd >= 0) return std::unique_ptr<ShmFolder>(new ShmFolder(std::move(path), fd));
  }
  return absl::UnavailableError(absl::StrCat("cannot lock a folder for shared memory in ", parent));
}

ShmFolder::~ShmFolder() {
  RemoveSegments(path_);
  close(fd_);
}

}  // namespace sluice::transport
