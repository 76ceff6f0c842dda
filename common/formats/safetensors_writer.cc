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

absl::Status Bad(const SafetensorsEntry& entry, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", entry.name, "' of shape [",
                                                 absl::StrJoin(entry.shape, ","),
                                                 "] cannot be written: ", what));
}

// `bytes`: of all tensors together.
absl::StatusOr<std::string> MakeHeader(absl::Span<const SafetensorsEntry> entries,
                                       uint64_t* bytes) {
  absl::flat_hash_set<absl::string_view> names;
  std::string json = "{";
  *bytes = 0;
  for (const SafetensorsEntry& entry : entries) {
    uint64_t size = BytesOf(entry.type);
    bool fits = true;
    for (uint64_t dim : entry.shape) fits = fits && CheckedMul(size, dim, &size);
    if (!fits) return Bad(entry, "it is too large");
    if (!IsPlainName(entry.name) || !names.insert(entry.name).second) {
      return Bad(entry, "the name is empty, is there twice or needs escaping");
    }
    absl::StrAppend(&json, json.size() == 1 ? "" : ",", "\"", entry.name, "\":{\"dtype\":\"",
                    NameOf(entry.type), "\",\"shape\":[", absl::StrJoin(entry.shape, ","),
                    "],\"data_offsets\":[", *bytes, ",", *bytes + size, "]}");
    *bytes += size;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');  // keeps the data 8-byte aligned
  return json;
}

}  // namespace

// Removes itself unless it was renamed.
class SafetensorsWriter::TemporaryFile {
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

SafetensorsWriter::SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    absl::string_view path, absl::Span<const SafetensorsEntry> entries) {
  SafetensorsWriter writer;
  SLUICE_ASSIGN_OR_RETURN(const std::string header, MakeHeader(entries, &writer.missing_));
  writer.path_ = std::string(path);
  writer.file_ = std::make_unique<TemporaryFile>(absl::StrCat(path, ".", getpid(), ".part"));
  const uint64_t header_bytes = header.size();
  writer.file_->Write(&header_bytes, sizeof(header_bytes));
  writer.file_->Write(header.data(), header.size());
  return writer;
}

void SafetensorsWriter::Append(const void* bytes, size_t count) {
  too_many_ = too_many_ || count > missing_;
  if (too_many_) return;
  missing_ -= count;
  file_->Write(bytes, count);
}

absl::Status SafetensorsWriter::Finish() {
  if (too_many_ || missing_ > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("writing '", path_, "': ",
                     too_many_ ? std::string("more bytes than the tensors have")
                               : absl::StrCat(missing_, " bytes of the tensors are missing")));
  }
  return file_->RenameTo(path_);
}

absl::Status WriteSafetensors(absl::string_view path, absl::Span<const SafetensorsF32> tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsF32& tensor : tensors) {
    entries.push_back({tensor.name, SafetensorsType::kF32, tensor.shape});
    uint64_t count = 1;
    bool fits = true;
    for (uint64_t dim : tensor.shape) fits = fits && CheckedMul(count, dim, &count);
    if (!fits || count != tensor.data.size()) {
      return Bad(entries.back(), absl::StrCat("it has ", tensor.data.size(), " values"));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, entries));
  for (const SafetensorsF32& tensor : tensors) {
    writer.Append(tensor.data.data(), tensor.data.size() * sizeof(float));
  }
  return writer.Finish();
}

}  // namespace sluice::formats
