// A whole file mapped into memory for reading.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::formats {

// RAII over a read-only, private mapping of one regular file. Immutable, so any thread may read it.
// The file must not be truncated while it is mapped: the kernel would answer a read with SIGBUS.
class MappedFile {
 public:
  // Maps `path`. The error names the path, the system call and the errno text: NOT_FOUND,
  // PERMISSION_DENIED, INVALID_ARGUMENT (not a regular file) or INTERNAL. An empty file maps to an
  // empty span.
  static absl::StatusOr<MappedFile> Open(absl::string_view path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  absl::Span<const uint8_t> bytes() const { return bytes_; }
  absl::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, absl::Span<const uint8_t> bytes);
  void Unmap();

  std::string path_;
  absl::Span<const uint8_t> bytes_;
};

// Reads a text file of at most `max_bytes` into memory. Errors as MappedFile::Open, and
// INVALID_ARGUMENT when the file is larger.
absl::StatusOr<std::string> ReadTextFile(absl::string_view path, uint64_t max_bytes);

}  // namespace sluice::formats
