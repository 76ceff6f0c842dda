// A cursor over untrusted little-endian bytes: every read is checked against the end.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::formats {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "file formats are read in place");

// Multiplies or adds into `*result`; false on overflow.
inline bool CheckedMul(uint64_t a, uint64_t b, uint64_t* result) {
  return !__builtin_mul_overflow(a, b, result);
}
inline bool CheckedAdd(uint64_t a, uint64_t b, uint64_t* result) {
  return !__builtin_add_overflow(a, b, result);
}

// Copies a T out of possibly unaligned bytes; the caller has checked the size.
template <typename T>
T LoadUnaligned(const uint8_t* bytes) {
  static_assert(std::is_arithmetic_v<T>);
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Thread-compatible. A read that would pass the end returns false and moves nothing.
class ByteReader {
 public:
  explicit ByteReader(absl::Span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  bool Read(T* value) {
    if (remaining() < sizeof(T)) return false;
    *value = LoadUnaligned<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return true;
  }
  bool ReadSpan(uint64_t size, absl::Span<const uint8_t>* span) {
    if (remaining() < size) return false;
    *span = bytes_.subspan(position_, size);
    position_ += size;
    return true;
  }

 private:
  absl::Span<const uint8_t> bytes_;
  uint64_t position_ = 0;
};

inline absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace sluice::formats
