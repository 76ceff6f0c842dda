#include "kernels/kv_store/kv_store.h"

#include <cstring>

#include "base/check.h"
#include "kernels/fp/fp.h"
#include "kernels/kv_store/kv_store_impl.h"

namespace sluice::kernels {
namespace {

using kv_store_internal::RowKernels;

constexpr int kMaxHeadDim = 256;

const RowKernels& KernelsOf(IsaPath path) {
  switch (path) {
    case IsaPath::kAvx512:
      return kv_store_internal::kAvx512Rows;
    case IsaPath::kAvx2:
      return kv_store_internal::kAvx2Rows;
    case IsaPath::kReference:
      break;
  }
  return kv_store_internal::kReferenceRows;
}

// Index of (head, row) in a [H][P] component.
size_t RowIndex(const KvLayerView& layer, int head, int row) {
  return static_cast<size_t>(head) * static_cast<size_t>(layer.page_tokens) +
         static_cast<size_t>(row);
}

// Start of the 4-byte groups of one row in an interleaved K component
// [H][P/16][bytes_per_row/4][16][4]; the groups lie 64 bytes apart.
size_t InterleavedOffset(const KvLayerView& layer, int head, int row, size_t bytes_per_row) {
  const size_t block = RowIndex(layer, head, row) / kKvBlockTokens;
  return block * kKvBlockTokens * bytes_per_row + static_cast<size_t>(row % kKvBlockTokens) * 4;
}

void Scatter(const void* row_bytes, size_t bytes, std::byte* to) {
  const auto* from = static_cast<const std::byte*>(row_bytes);
  for (size_t i = 0; i < bytes; i += 4) std::memcpy(to + i * kKvBlockTokens, from + i, 4);
}

void Gather(const std::byte* from, size_t bytes, void* row_bytes) {
  auto* to = static_cast<std::byte*>(row_bytes);
  for (size_t i = 0; i < bytes; i += 4) std::memcpy(to + i, from + i * kKvBlockTokens, 4);
}

void StoreFp8(const RowKernels& kernels, const KvLayerView& layer, std::byte* page, int row,
              int head, const float* k, const float* v) {
  const auto dim = static_cast<size_t>(layer.head_dim);
  const size_t index = RowIndex(layer, head, row);
  uint8_t codes[kMaxHeadDim];
  const uint8_t k_scale = Ue8m0ScaleFor(BitsFloat(kernels.max_magnitude(k, layer.head_dim)));
  kernels.quantise_e4m3(k, layer.head_dim, Ue8m0Inverse(k_scale), codes);
  Scatter(codes, dim, page + layer.k_offset + InterleavedOffset(layer, head, row, dim));
  page[layer.k_scale_offset + index] = std::byte{k_scale};
  const uint8_t v_scale = Ue8m0ScaleFor(BitsFloat(kernels.max_magnitude(v, layer.head_dim)));
  kernels.quantise_e4m3(v, layer.head_dim, Ue8m0Inverse(v_scale), codes);
  std::memcpy(page + layer.v_offset + index * dim, codes, dim);
  page[layer.v_scale_offset + index] = std::byte{v_scale};
}

void StoreBf16(const RowKernels& kernels, const KvLayerView& layer, std::byte* page, int row,
               int head, const float* k, const float* v) {
  const size_t bytes = static_cast<size_t>(layer.head_dim) * 2;
  uint16_t rounded[kMaxHeadDim];
  kernels.round_bf16(k, layer.head_dim, rounded);
  Scatter(rounded, bytes, page + layer.k_offset + InterleavedOffset(layer, head, row, bytes));
  kernels.round_bf16(v, layer.head_dim, rounded);
  std::memcpy(page + layer.v_offset + RowIndex(layer, head, row) * bytes, rounded, bytes);
}

void StoreF32(const KvLayerView& layer, std::byte* page, int row, int head, const float* k,
              const float* v) {
  const size_t bytes = static_cast<size_t>(layer.head_dim) * 4;
  const size_t at = RowIndex(layer, head, row) * bytes;
  std::memcpy(page + layer.k_offset + at, k, bytes);
  std::memcpy(page + layer.v_offset + at, v, bytes);
}

}  // namespace

void StoreKv(IsaPath path, const KvLayerView& layer, std::byte* const* pages,
             int64_t first_position, const KvRows& rows, int row_begin, int row_end) {
  SLUICE_CHECK(layer.head_dim % 16 == 0 && layer.head_dim <= kMaxHeadDim &&
               layer.page_tokens % kKvBlockTokens == 0)
      << "head_dim " << layer.head_dim << ", page_tokens " << layer.page_tokens;
  const RowKernels& kernels = KernelsOf(path);
  for (int r = row_begin; r < row_end; ++r) {
    const int64_t slot = SlotOfPosition(first_position + r, layer.sink_rows);
    std::byte* page = pages[slot / layer.page_tokens];
    const int row = static_cast<int>(slot % layer.page_tokens);
    for (int head = 0; head < layer.kv_heads; ++head) {
      const float* k = rows.k + r * rows.k_stride + head * layer.head_dim;
      const float* v = rows.v + r * rows.v_stride + head * layer.head_dim;
      switch (layer.format) {
        case KvFormat::kF32:
          StoreF32(layer, page, row, head, k, v);
          break;
        case KvFormat::kBf16:
          StoreBf16(kernels, layer, page, row, head, k, v);
          break;
        case KvFormat::kGqaFp8:
          StoreFp8(kernels, layer, page, row, head, k, v);
          break;
      }
    }
  }
}

void LoadKvSlot(const KvLayerView& layer, const std::byte* page, int row, float* k, float* v) {
  const auto dim = static_cast<size_t>(layer.head_dim);
  for (int head = 0; head < layer.kv_heads; ++head, k += dim, v += dim) {
    const size_t index = RowIndex(layer, head, row);
    const std::byte* k_at = page + layer.k_offset;
    const std::byte* v_at = page + layer.v_offset;
    if (layer.format == KvFormat::kF32) {
      std::memcpy(k, k_at + index * dim * 4, dim * 4);
      std::memcpy(v, v_at + index * dim * 4, dim * 4);
    } else if (layer.format == KvFormat::kBf16) {
      uint16_t k_row[kMaxHeadDim];
      uint16_t v_row[kMaxHeadDim];
      Gather(k_at + InterleavedOffset(layer, head, row, dim * 2), dim * 2, k_row);
      std::memcpy(v_row, v_at + index * dim * 2, dim * 2);
      for (size_t d = 0; d < dim; ++d) {
        k[d] = Bf16ToFloat(k_row[d]);
        v[d] = Bf16ToFloat(v_row[d]);
      }
    } else {
      uint8_t k_row[kMaxHeadDim];
      uint8_t v_row[kMaxHeadDim];
      Gather(k_at + InterleavedOffset(layer, head, row, dim), dim, k_row);
      std::memcpy(v_row, v_at + index * dim, dim);
      const float k_scale = Ue8m0ToFloat(static_cast<uint8_t>(page[layer.k_scale_offset + index]));
      const float v_scale = Ue8m0ToFloat(static_cast<uint8_t>(page[layer.v_scale_offset + index]));
      for (size_t d = 0; d < dim; ++d) {
        k[d] = E4m3ToFloat(k_row[d]) * k_scale;
        v[d] = E4m3ToFloat(v_row[d]) * v_scale;
      }
    }
  }
}

}  // namespace sluice::kernels
