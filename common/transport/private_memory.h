// Zeroed pages of this process, for backends that need no special memory. Internal to the folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice::transport {

// Unmaps in its destructor. Move-only.
class PrivateMemory {
 public:
  // Errors: INVALID_ARGUMENT for 0 bytes, RESOURCE_EXHAUSTED.
  static absl::StatusOr<PrivateMemory> Map(size_t bytes);
  PrivateMemory(PrivateMemory&& other) noexcept;
  PrivateMemory& operator=(PrivateMemory&&) = delete;
  ~PrivateMemory();

  absl::Span<uint8_t> bytes() const { return absl::MakeSpan(data_, size_); }

 private:
  PrivateMemory(uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t* data_;
  size_t size_;
};

}  // namespace sluice::transport
