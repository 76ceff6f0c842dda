#include "services/cli/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

constexpr char kLockName[] = "/lock";

// Opens the lock of a folder of ours and takes it; -1 when it is held, missing, or the folder is
// somebody else's.
int TakeLock(const std::string& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != getuid())
    return -1;
  const int fd = open((folder + kLockName).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

absl::StatusOr<StateFolder> StateFolder::Create(const std::string& parent) {
  StateFolder made;
  std::string name = absl::StrCat(parent, "/", kStateFolderPrefix, "XXXXXX");
  if (mkdtemp(name.data()) == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat("cannot create ", name, ": ", strerror(errno)));
  }
  made.path_ = std::move(name);
  // The file gets its name once it is locked: nobody ever finds it free. Inherited by children,
  // hence no O_CLOEXEC.
  const std::string lock = made.path_ + kLockName;
  const std::string unnamed = lock + ".new";
  made.lock_fd_ = open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (made.lock_fd_ < 0 || flock(made.lock_fd_, LOCK_EX | LOCK_NB) != 0 ||
      rename(unnamed.c_str(), lock.c_str()) != 0) {
    const absl::Status status =
        absl::PermissionDeniedError(absl::StrCat("cannot lock ", lock, ": ", strerror(errno)));
    made.Remove();
    return status;
  }
  return made;
}

StateFolder::StateFolder(StateFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

StateFolder& StateFolder::operator=(StateFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_fd_, other.lock_fd_);
  return *this;
}

StateFolder::~StateFolder() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

void StateFolder::Remove() const {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

int RemoveStaleFolders(const std::string& parent) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    if (!absl::StartsWith(entry.path().filename().string(), kStateFolderPrefix)) continue;
    const int fd = TakeLock(entry.path().string());
    if (fd < 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(entry.path(), ignored);
    close(fd);
    ++removed;
  }
  return removed;
}

}  // namespace sluice::cli
