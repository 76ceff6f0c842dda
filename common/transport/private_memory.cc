#include "transport/private_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::transport {

absl::StatusOr<PrivateMemory> PrivateMemory::Map(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a region of 0 bytes");
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes: ", strerror(errno)));
  }
  madvise(memory, bytes, MADV_HUGEPAGE);  // an optimisation only
  return PrivateMemory(static_cast<uint8_t*>(memory), bytes);
}

PrivateMemory::PrivateMemory(PrivateMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PrivateMemory::~PrivateMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace sluice::transport
