// For tests and benchmarks of kernels: one layer's layout and a few pages of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace sluice::kernels {

// The layout of one layer behind a page header; `page_bytes` receives the size of a page that holds
// nothing else.
inline KvLayerView TestLayer(KvFormat format, int kv_heads, int head_dim, int page_tokens,
                             size_t* page_bytes) {
  KvLayerView layer;
  layer.format = format;
  layer.page_tokens = page_tokens;
  layer.kv_heads = kv_heads;
  layer.head_dim = head_dim;
  uint32_t at = 64;
  const auto take = [&at](size_t bytes) {
    const uint32_t offset = at;
    at += static_cast<uint32_t>((bytes + 63) / 64 * 64);
    return offset;
  };
  const size_t rows = static_cast<size_t>(kv_heads) * static_cast<size_t>(page_tokens);
  const KvCode code = KvCodeOf(format);
  const size_t value_bytes = code == KvCode::kF32 ? 4 : code == KvCode::kBf16 ? 2 : 1;
  const auto scale_bytes = static_cast<size_t>(KvScaleBytes(KvScaleOf(format)));
  const size_t codes = rows * static_cast<size_t>(head_dim) * value_bytes;
  layer.k_offset = take(codes);
  layer.k_scale_offset = take(rows * scale_bytes);
  layer.v_offset = take(codes);
  layer.v_scale_offset = take(rows * scale_bytes);
  *page_bytes = at;
  return layer;
}

// Pages of one sequence, 64-byte aligned, every byte `fill`.
class TestPages {
 public:
  TestPages(const KvLayerView& layer, size_t page_bytes, int64_t tokens,
            std::byte fill = std::byte{0})
      : memory_(page_bytes * Count(layer, tokens) + 64, fill) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % 64;
    std::byte* start = memory_.data() + (misaligned == 0 ? 0 : 64 - misaligned);
    // Descending addresses: code that walks memory instead of the table reads wrong pages.
    for (size_t count = Count(layer, tokens); count-- > 0;)
      pages_.push_back(start + count * page_bytes);
  }

  std::byte* const* table() const { return pages_.data(); }
  const std::byte* const* const_table() const { return pages_.data(); }
  size_t count() const { return pages_.size(); }

 private:
  static size_t Count(const KvLayerView& layer, int64_t tokens) {
    const int64_t slots = SlotOfPosition(tokens, layer.sink_rows);
    return static_cast<size_t>((slots + layer.page_tokens - 1) / layer.page_tokens);
  }

  std::vector<std::byte> memory_;
  std::vector<std::byte*> pages_;
};

}  // namespace sluice::kernels
