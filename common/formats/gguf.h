// GGUF version 3: metadata and tensor directory of a model file, as views into the mapped file.
//
// Everything the file says is checked before it is believed: counts and lengths against what is
// left of the file and against GgufLimits, every product and sum for overflow, tensors against the
// file's end and each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "formats/mapped_file.h"

namespace sluice::formats {

// The block types that can be read; values are the type ids in the file.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// A block of `elements` consecutive elements of a row takes `bytes`.
struct GgmlBlock {
  absl::string_view name;
  uint32_t elements = 0;
  uint32_t bytes = 0;
};
GgmlBlock BlockOf(GgmlType type);

// Types of metadata values; values are the type ids in the file.
enum class GgufValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

struct GgufLimits {
  uint64_t max_header_bytes = 256u << 20;  // everything in front of the tensor data
  uint64_t max_metadata = 65'536;          // key-value pairs
  uint64_t max_tensors = 262'144;
  uint64_t max_name_bytes = 65'535;       // metadata keys
  uint64_t max_string_bytes = 16u << 20;  // one string value
  uint64_t max_array_elements = 16u << 20;
};

// A tensor of the file. `dims` has the fastest dimension first, as stored: dims[0] is the row
// length (inputs).
struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  absl::InlinedVector<uint64_t, 4> dims;
  absl::Span<const uint8_t> data;  // in the mapping; starts at a multiple of the file's alignment

  uint64_t row_elements() const { return dims[0]; }
  uint64_t rows() const;  // product of the other dimensions; cannot overflow in a parsed file
};

// Immutable; any thread may read it. Views returned by accessors live as long as the file (or the
// bytes given to Parse).
class GgufFile {
 public:
  // Maps and parses `path`. Errors: those of MappedFile::Open; INVALID_ARGUMENT for a malformed,
  // truncated or lying file; UNIMPLEMENTED for another version or a block type that is not
  // supported.
  static absl::StatusOr<GgufFile> Open(absl::string_view path, const GgufLimits& limits = {});
  // The same over bytes that the caller keeps alive. `source` is the name used in errors.
  static absl::StatusOr<GgufFile> Parse(absl::Span<const uint8_t> bytes, absl::string_view source,
                                        const GgufLimits& limits = {});

  const std::string& source() const { return source_; }
  uint64_t alignment() const { return alignment_; }

  bool Has(absl::string_view key) const { return metadata_.contains(key); }
  // Typed metadata. NOT_FOUND when `key` is missing; INVALID_ARGUMENT when it has another type or
  // the value does not fit. Integers convert between widths and signs when the value fits; GetF64
  // also takes f32.
  absl::StatusOr<uint64_t> GetU64(absl::string_view key) const;
  absl::StatusOr<uint32_t> GetU32(absl::string_view key) const;
  absl::StatusOr<double> GetF64(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  // Arrays. Strings are views; integers of any width become int64 (an u64 above int64 is refused).
  absl::StatusOr<std::vector<absl::string_view>> GetStringArray(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetIntArray(absl::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // The tensor called `name`, or null.
  const GgufTensor* FindTensor(absl::string_view name) const;

 private:
  friend class GgufParser;
  // A checked value: `bytes` is its payload (of an array: the elements, without type and count).
  struct Value {
    GgufValueType type = GgufValueType::kU8;
    GgufValueType element = GgufValueType::kU8;  // of an array
    uint64_t count = 0;                          // of an array
    absl::Span<const uint8_t> bytes;
  };

  absl::StatusOr<const Value*> Find(absl::string_view key) const;
  absl::StatusOr<const Value*> FindArray(absl::string_view key) const;
  absl::Status Mismatch(absl::string_view key, absl::string_view wanted, const Value& value) const;

  std::string source_;
  std::optional<MappedFile> file_;
  uint64_t alignment_ = 32;
  absl::flat_hash_map<std::string, Value> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace sluice::formats
