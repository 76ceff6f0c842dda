#include "device/huge_page_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::device {

absl::StatusOr<HugePageArena> HugePageArena::Create(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX - 2 * kAlignment) {
    return absl::InvalidArgumentError(absl::StrCat("arena of ", bytes, " bytes"));
  }
  // mmap aligns to 4 KiB only: one alignment more gives room to start at a 2 MiB boundary.
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t mapping_bytes = rounded + kAlignment;
  void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", mapping_bytes, " bytes of memory: ", std::strerror(errno),
                     "; lower the pool size or raise the memory limit"));
  }
  HugePageArena arena;
  arena.mapping_ = mapping;
  arena.mapping_bytes_ = mapping_bytes;
  const size_t misaligned = reinterpret_cast<uintptr_t>(mapping) % kAlignment;
  std::byte* start =
      static_cast<std::byte*>(mapping) + (misaligned == 0 ? 0 : kAlignment - misaligned);
  arena.memory_ = absl::MakeSpan(start, bytes);
  // Refusal (no transparent huge pages in this kernel) only costs speed.
  (void)madvise(start, rounded, MADV_HUGEPAGE);
  return arena;
}

HugePageArena::~HugePageArena() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

HugePageArena::HugePageArena(HugePageArena&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      memory_(std::exchange(other.memory_, {})),
      used_(std::exchange(other.used_, 0)) {}

HugePageArena& HugePageArena::operator=(HugePageArena&& other) noexcept {
  if (this == &other) return *this;
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
  memory_ = std::exchange(other.memory_, {});
  used_ = std::exchange(other.used_, 0);
  return *this;
}

absl::StatusOr<absl::Span<std::byte>> HugePageArena::Allocate(size_t bytes) {
  const size_t begin = (used_ + 63) / 64 * 64;
  if (begin > memory_.size() || bytes > memory_.size() - begin) {
    return absl::ResourceExhaustedError(absl::StrCat("arena of ", memory_.size(), " bytes holds ",
                                                     used_, "; ", bytes, " more do not fit"));
  }
  used_ = begin + bytes;
  return memory_.subspan(begin, bytes);
}

}  // namespace sluice::device
