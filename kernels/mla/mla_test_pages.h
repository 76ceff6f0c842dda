// For tests and benchmarks of latent attention: one layer's layout and a few pages of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace sluice::kernels {

// One layer behind a page header, its components in order, each padded to 64 bytes.
struct MlaTestLayout {
  MlaLayerView layer;
  size_t page_bytes = 64;

  MlaTestLayout(KvFormat format, int latent, int rope, int page_tokens) {
    layer = {format, page_tokens, latent, rope};
    const auto rows = static_cast<size_t>(page_tokens);
    const auto width = static_cast<size_t>(layer.width());
    layer.latent_offset = 64;
    if (format == KvFormat::kMlaFp8Tiles) {
      Take(rows * static_cast<size_t>(MlaTilesRowBytes(latent, rope)));
      return;
    }
    const size_t bytes = format == KvFormat::kF32 ? 4 : format == KvFormat::kBf16 ? 2 : 1;
    Take(rows * static_cast<size_t>(latent) * bytes);
    layer.rope_offset = Take(rows * (width - static_cast<size_t>(latent)) * bytes);
    if (format != KvFormat::kMlaFp8) return;
    layer.latent_scale_offset = Take(rows);
    layer.rope_scale_offset = Take(rows * 2);
  }

  void AddIndex(int index) {
    const auto values = static_cast<size_t>(layer.page_tokens) * static_cast<size_t>(index);
    layer.index = index;
    layer.index_offset = Take(layer.format == KvFormat::kF32 ? values * 4 : values);
    layer.index_scale_offset = Take(static_cast<size_t>(layer.page_tokens) * 4);
  }

 private:
  uint32_t Take(size_t bytes) {
    const auto offset = static_cast<uint32_t>(page_bytes);
    page_bytes += (bytes + 63) / 64 * 64;
    return offset;
  }
};

// Pages of one sequence, 64-byte aligned, every byte `fill`.
class MlaTestPages {
 public:
  MlaTestPages(const MlaTestLayout& layout, int tokens, std::byte fill)
      : memory_(layout.page_bytes * Count(layout, tokens) + 64, fill) {
    std::byte* start = memory_.data();
    start += (64 - reinterpret_cast<uintptr_t>(start) % 64) % 64;
    // Descending addresses: code that walks memory instead of the table reads wrong pages.
    for (size_t i = Count(layout, tokens); i-- > 0;)
      table_.push_back(start + i * layout.page_bytes);
  }
  std::byte* const* table() const { return table_.data(); }
  const std::byte* const* const_table() const { return table_.data(); }
  const std::vector<std::byte>& memory() const { return memory_; }

 private:
  static size_t Count(const MlaTestLayout& layout, int tokens) {
    return static_cast<size_t>((tokens - 1) / layout.layer.page_tokens + 1);
  }
  std::vector<std::byte> memory_;
  std::vector<std::byte*> table_;
};

}  // namespace sluice::kernels
