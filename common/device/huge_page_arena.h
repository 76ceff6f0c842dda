// Large buffers on 2 MiB pages: weights, KV pools and scratch read about 20 % faster from them than
// from 4 KiB pages.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice::device {

// One anonymous mapping, zeroed, 2 MiB aligned, with huge pages asked for (the kernel may decline;
// nothing fails then). Memory is taken from the system when first touched, by the node of the
// thread that touches it. Move-only; the destructor unmaps. Thread-compatible: memory() may be used
// from any thread.
class HugePageArena {
 public:
  static constexpr size_t kAlignment = size_t{2} << 20;

  HugePageArena() = default;
  // Reserves `bytes` (> 0). RESOURCE_EXHAUSTED when the address space or the memory limit does not
  // allow it.
  static absl::StatusOr<HugePageArena> Create(size_t bytes);
  ~HugePageArena();
  HugePageArena(HugePageArena&& other) noexcept;
  HugePageArena& operator=(HugePageArena&& other) noexcept;

  absl::Span<std::byte> memory() const { return memory_; }

  // Next `bytes` of the arena, 64-byte aligned. RESOURCE_EXHAUSTED when they do not fit. Never
  // freed one by one.
  absl::StatusOr<absl::Span<std::byte>> Allocate(size_t bytes);
  size_t allocated_bytes() const { return used_; }

 private:
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  absl::Span<std::byte> memory_;
  size_t used_ = 0;
};

}  // namespace sluice::device
