#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "formats/byte_reader.h"
#include "formats/safetensors.h"

namespace sluice::formats {
namespace {

// Only names that need no escaping in JSON are written.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && name != "__metadata__" &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
}

absl::StatusOr<std::string> MakeHeader(absl::Span<const SafetensorsF32> tensors) {
  absl::flat_hash_set<absl::string_view> names;
  std::string json = "{";
  uint64_t offset = 0;
  for (const SafetensorsF32& tensor : tensors) {
    uint64_t count = 1;
    bool fits = true;
    for (uint64_t dim : tensor.shape) fits = fits && CheckedMul(count, dim, &count);
    if (!IsPlainName(tensor.name) || !names.insert(tensor.name).second || !fits ||
        count != tensor.data.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' of shape [", absl::StrJoin(tensor.shape, ","), "] with ",
          tensor.data.size(), " values cannot be written: name or shape is wrong"));
    }
    const uint64_t end = offset + tensor.data.size() * sizeof(float);
    absl::StrAppend(&json, offset == 0 && json.size() == 1 ? "" : ",", "\"", tensor.name,
                    "\":{\"dtype\":\"F32\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                    "],\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');  // keeps the data 8-byte aligned
  return json;
}

// Owns the temporary file: removes it unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0) error_ = errno;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ >= 0) close(fd_);
    if (error_ != EEXIST && !renamed_) unlink(path_.c_str());
  }

  void Write(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0 && error_ == 0) {
      const ssize_t written = write(fd_, at, size);
      if (written < 0) {
        if (errno != EINTR) error_ = errno;
        continue;
      }
      at += written;
      size -= static_cast<size_t>(written);
    }
  }
  absl::Status RenameTo(const std::string& target) {
    if (error_ == 0 && rename(path_.c_str(), target.c_str()) != 0) error_ = errno;
    if (error_ != 0) return absl::ErrnoToStatus(error_, absl::StrCat("writing '", target, "'"));
    renamed_ = true;
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  int fd_ = -1;
  int error_ = 0;
  bool renamed_ = false;
};

}  // namespace

absl::Status WriteSafetensors(absl::string_view path, absl::Span<const SafetensorsF32> tensors) {
  SLUICE_ASSIGN_OR_RETURN(const std::string header, MakeHeader(tensors));
  TemporaryFile file(absl::StrCat(path, ".", getpid(), ".part"));
  const uint64_t header_bytes = header.size();
  file.Write(&header_bytes, sizeof(header_bytes));
  file.Write(header.data(), header.size());
  for (const SafetensorsF32& tensor : tensors) {
    file.Write(tensor.data.data(), tensor.data.size() * sizeof(float));
  }
  return file.RenameTo(std::string(path));
}

}  // namespace sluice::formats
