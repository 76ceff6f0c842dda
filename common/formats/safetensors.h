// safetensors: tensors of one file or of a sharded checkpoint, as views into the mapped files; and
// a writer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "formats/mapped_file.h"

namespace sluice::formats {

enum class SafetensorsType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};
// "BF16", ...
absl::string_view NameOf(SafetensorsType type);
uint32_t BytesOf(SafetensorsType type);

struct SafetensorsLimits {
  uint64_t max_header_bytes = 100'000'000;
  uint64_t max_tensors = 1'000'000;
  uint64_t max_index_bytes = 100'000'000;
  uint64_t max_shards = 4'096;
  uint64_t max_dims = 8;
};

// `shape` is row-major, slowest first; `data` holds exactly shape x type bytes and may be
// unaligned.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<uint64_t> shape;
  absl::Span<const uint8_t> data;

  uint64_t elements() const { return data.size() / BytesOf(type); }
};

// The tensors and the __metadata__ of one file's bytes.
struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Checks and lists one file's bytes: header length and JSON within limits, no duplicate names,
// spans equal to shape x type, no overlap, no hole, no byte left over. INVALID_ARGUMENT names
// `source`, the tensor and the numbers.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(absl::Span<const uint8_t> bytes,
                                                   absl::string_view source,
                                                   const SafetensorsLimits& limits = {});

// A checkpoint of one or many files. Immutable; any thread may read it. Views live as long as the
// object.
class Safetensors {
 public:
  static absl::StatusOr<Safetensors> OpenFile(absl::string_view path,
                                              const SafetensorsLimits& limits = {});
  // Opens model.safetensors.index.json with its shards, or else model.safetensors, in `folder`.
  // Shard names are plain file names of that folder; a name in the index that its shard lacks is an
  // error; tensors of a shard that the index does not list are ignored.
  static absl::StatusOr<Safetensors> OpenFolder(absl::string_view folder,
                                                const SafetensorsLimits& limits = {});

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const SafetensorsTensor* Find(absl::string_view name) const;  // null when there is none

 private:
  absl::Status AddFile(absl::string_view path, const SafetensorsLimits& limits,
                       const absl::flat_hash_map<std::string, std::string>* shard_of,
                       absl::string_view shard);

  std::vector<MappedFile> files_;
  std::vector<SafetensorsTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
};

// A tensor to write: what the header says of it.
struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<uint64_t> shape;
};

// Writes a file through a temporary one beside it and a rename, so that readers see all or nothing.
// Move-only; dropping it unfinished leaves no file. Thread-compatible.
class SafetensorsWriter {
 public:
  // Writes the header. INVALID_ARGUMENT when a name repeats or needs escaping in JSON; else the
  // errno of the failed call.
  static absl::StatusOr<SafetensorsWriter> Create(absl::string_view path,
                                                  absl::Span<const SafetensorsEntry> entries);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  // The next bytes of the tensors, which follow each other in the order of the entries. A failure
  // is kept for Finish.
  void Append(const void* bytes, size_t count);
  // FAILED_PRECONDITION unless exactly the bytes of all entries were appended.
  absl::Status Finish();

 private:
  class TemporaryFile;
  SafetensorsWriter();

  std::unique_ptr<TemporaryFile> file_;
  std::string path_;
  uint64_t missing_ = 0;  // bytes still to come
  bool too_many_ = false;
};

// A float32 tensor to write; `data` holds the product of `shape` values.
struct SafetensorsF32 {
  std::string name;
  std::vector<uint64_t> shape;
  absl::Span<const float> data;
};

// Writes `tensors` to `path` as SafetensorsWriter does; INVALID_ARGUMENT also when a shape does not
// match its data.
absl::Status WriteSafetensors(absl::string_view path, absl::Span<const SafetensorsF32> tensors);

}  // namespace sluice::formats
