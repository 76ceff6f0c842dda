#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::formats {
namespace {

absl::Status SystemError(int error, absl::string_view call, absl::string_view path) {
  return absl::ErrnoToStatus(error, absl::StrCat(call, " '", path, "'"));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(absl::string_view path) {
  std::string name(path);
  // O_NONBLOCK: opening a FIFO must fail below instead of waiting for a writer.
  const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, "open", path);
  struct stat info = {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return SystemError(error, "fstat", path);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return MappedFile(std::move(name), {});
  }
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  if (memory == MAP_FAILED) return SystemError(error, "mmap", path);
  return MappedFile(std::move(name), {static_cast<const uint8_t*>(memory), size});
}

MappedFile::MappedFile(std::string path, absl::Span<const uint8_t> bytes)
    : path_(std::move(path)), bytes_(bytes) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MappedFile::~MappedFile() { Unmap(); }

void MappedFile::Unmap() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

absl::StatusOr<std::string> ReadTextFile(absl::string_view path, uint64_t max_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' has ", file.bytes().size(),
                                                   " bytes; at most ", max_bytes,
                                                   " are read from such a file"));
  }
  return std::string(file.text());
}

}  // namespace sluice::formats
