#include "kernels/kv_store/kv_store.h"

#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/fp/fp.h"
#include "kernels/kv_store/kv_store_impl.h"

namespace sluice::kernels {

const kv_store_internal::RowKernels& kv_store_internal::RowKernelsOf(IsaPath path) {
  switch (path) {
    case IsaPath::kAvx512:
      return kAvx512Rows;
    case IsaPath::kAvx2:
      return kAvx2Rows;
    case IsaPath::kReference:
      break;
  }
  return kReferenceRows;
}

namespace {

using kv_store_internal::RowKernels;

constexpr int kMaxHeadDim = 256;

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

// One row of one head as the codes and the scale of a page.
struct CodedRow {
  uint8_t codes[kMaxHeadDim];
  uint16_t scale;  // of the format's KvScale
};

// Of the 8 scales from the smallest that fits on, one octave, the one that loses least.
uint8_t PickUe5m3(const RowKernels& kernels, const float* x, int dim, float amax) {
  const int smallest = Ue5m3ScaleFor(amax);
  int best = smallest;
  float fewest = std::numeric_limits<float>::infinity();
  for (int code = smallest; code < smallest + 8 && code < 256; ++code) {
    const float scale = Ue5m3ToFloat(static_cast<uint8_t>(code));
    const float misses = kernels.squared_misses(x, dim, 1.0f / scale) * (scale * scale);
    if (misses < fewest) {  // never for NaN: such rows take the smallest
      fewest = misses;
      best = code;
    }
  }
  return static_cast<uint8_t>(best);
}

void Quantise(const RowKernels& kernels, KvScale kind, const float* x, int dim, CodedRow* row) {
  const float amax = BitsFloat(kernels.max_magnitude(x, dim));
  if (kind == KvScale::kBf16) {
    row->scale = Int8ScaleFor(amax);
    kernels.quantise_int8(x, dim, 1.0f / Bf16ToFloat(row->scale), row->codes);
  } else if (kind == KvScale::kUe5m3) {
    const uint8_t scale = PickUe5m3(kernels, x, dim, amax);
    kernels.quantise_e4m3(x, dim, 1.0f / Ue5m3ToFloat(scale), row->codes);
    row->scale = scale;
  } else {
    const uint8_t scale = Ue8m0ScaleFor(amax);
    kernels.quantise_e4m3(x, dim, Ue8m0Inverse(scale), row->codes);
    row->scale = scale;
  }
}

void Dequantise(KvScale kind, const CodedRow& row, int dim, float* x) {
  if (kind == KvScale::kBf16) {
    const float scale = Bf16ToFloat(row.scale);
    for (int d = 0; d < dim; ++d)
      x[d] = static_cast<float>(static_cast<int8_t>(row.codes[d])) * scale;
    return;
  }
  const auto byte = static_cast<uint8_t>(row.scale);
  const float scale = kind == KvScale::kUe5m3 ? Ue5m3ToFloat(byte) : Ue8m0ToFloat(byte);
  for (int d = 0; d < dim; ++d) x[d] = E4m3ToFloat(row.codes[d]) * scale;
}

// Little-endian.
size_t ScaleBytes(const KvLayerView& layer) {
  return static_cast<size_t>(KvScaleBytes(KvScaleOf(layer.format)));
}

void PutK(const KvLayerView& layer, std::byte* page, int row, int head, const CodedRow& coded) {
  const auto dim = static_cast<size_t>(layer.head_dim);
  const size_t scale_bytes = ScaleBytes(layer);
  Scatter(coded.codes, dim, page + layer.k_offset + InterleavedOffset(layer, head, row, dim));
  std::memcpy(page + layer.k_scale_offset + RowIndex(layer, head, row) * scale_bytes, &coded.scale,
              scale_bytes);
}

void PutV(const KvLayerView& layer, std::byte* page, int row, int head, const CodedRow& coded) {
  const auto dim = static_cast<size_t>(layer.head_dim);
  const size_t scale_bytes = ScaleBytes(layer);
  const size_t index = RowIndex(layer, head, row);
  std::memcpy(page + layer.v_offset + index * dim, coded.codes, dim);
  std::memcpy(page + layer.v_scale_offset + index * scale_bytes, &coded.scale, scale_bytes);
}

using PutRow = void (*)(const KvLayerView& layer, std::byte* page, int row, int head,
                        const CodedRow& coded);

// x - centre, quantised; for the first token also what the codes miss of it, into the sink row.
void StoreCoded(const RowKernels& kernels, const KvLayerView& layer, std::byte* const* pages,
                int64_t slot, int head, const float* x, const float* centre, PutRow put) {
  const KvScale kind = KvScaleOf(layer.format);
  const int dim = layer.head_dim;
  float centred[kMaxHeadDim];
  if (centre != nullptr) {
    for (int d = 0; d < dim; ++d) centred[d] = x[d] - centre[head * dim + d];
    x = centred;
  }
  CodedRow row;
  Quantise(kernels, kind, x, dim, &row);
  put(layer, pages[slot / layer.page_tokens], static_cast<int>(slot % layer.page_tokens), head,
      row);
  if (!HasSecondTerm(layer) || slot != SlotOfPosition(0, layer.sink_rows)) return;
  float missed[kMaxHeadDim];
  Dequantise(kind, row, dim, missed);
  for (int d = 0; d < dim; ++d) missed[d] = x[d] - missed[d];
  Quantise(kernels, kind, missed, dim, &row);
  put(layer, pages[0], 0, head, row);
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

// One head of one slot as float32.
void LoadHead(const KvLayerView& layer, const std::byte* page, int row, int head, float* k,
              float* v) {
  const KvCode code = KvCodeOf(layer.format);
  const auto dim = static_cast<size_t>(layer.head_dim);
  const size_t index = RowIndex(layer, head, row);
  const std::byte* k_at = page + layer.k_offset;
  const std::byte* v_at = page + layer.v_offset;
  if (code == KvCode::kF32) {
    std::memcpy(k, k_at + index * dim * 4, dim * 4);
    std::memcpy(v, v_at + index * dim * 4, dim * 4);
  } else if (code == KvCode::kBf16) {
    uint16_t k_row[kMaxHeadDim];
    uint16_t v_row[kMaxHeadDim];
    Gather(k_at + InterleavedOffset(layer, head, row, dim * 2), dim * 2, k_row);
    std::memcpy(v_row, v_at + index * dim * 2, dim * 2);
    for (size_t d = 0; d < dim; ++d) {
      k[d] = Bf16ToFloat(k_row[d]);
      v[d] = Bf16ToFloat(v_row[d]);
    }
  } else {
    const KvScale kind = KvScaleOf(layer.format);
    const size_t scale_bytes = ScaleBytes(layer);
    CodedRow coded = {};
    Gather(k_at + InterleavedOffset(layer, head, row, dim), dim, coded.codes);
    std::memcpy(&coded.scale, page + layer.k_scale_offset + index * scale_bytes, scale_bytes);
    Dequantise(kind, coded, layer.head_dim, k);
    std::memcpy(coded.codes, v_at + index * dim, dim);
    std::memcpy(&coded.scale, page + layer.v_scale_offset + index * scale_bytes, scale_bytes);
    Dequantise(kind, coded, layer.head_dim, v);
  }
}

void Add(const float* x, int n, float* sum) {
  for (int i = 0; i < n; ++i) sum[i] += x[i];
}

}  // namespace

void StoreKv(IsaPath path, const KvLayerView& layer, std::byte* const* pages,
             int64_t first_position, const KvRows& rows, int row_begin, int row_end) {
  SLUICE_CHECK(layer.head_dim % 16 == 0 && layer.head_dim <= kMaxHeadDim &&
               layer.page_tokens % kKvBlockTokens == 0 &&
               (layer.sink_rows <= 1 || !IsCentred(layer.format)))
      << "head_dim " << layer.head_dim << ", page_tokens " << layer.page_tokens << ", sink_rows "
      << layer.sink_rows;
  const RowKernels& kernels = kv_store_internal::RowKernelsOf(path);
  for (int r = row_begin; r < row_end; ++r) {
    const int64_t slot = SlotOfPosition(first_position + r, layer.sink_rows);
    std::byte* page = pages[slot / layer.page_tokens];
    const int row = static_cast<int>(slot % layer.page_tokens);
    for (int head = 0; head < layer.kv_heads; ++head) {
      const float* k = rows.k + r * rows.k_stride + head * layer.head_dim;
      const float* v = rows.v + r * rows.v_stride + head * layer.head_dim;
      switch (KvCodeOf(layer.format)) {
        case KvCode::kF32:
          StoreF32(layer, page, row, head, k, v);
          break;
        case KvCode::kBf16:
          StoreBf16(kernels, layer, page, row, head, k, v);
          break;
        case KvCode::kE4m3:
        case KvCode::kInt8:
          StoreCoded(kernels, layer, pages, slot, head, k, layer.k_centre, PutK);
          StoreCoded(kernels, layer, pages, slot, head, v, layer.v_centre, PutV);
          break;
      }
    }
  }
}

void LoadKvSlot(const KvLayerView& layer, const std::byte* page, int row, float* k, float* v) {
  for (int head = 0; head < layer.kv_heads; ++head) {
    const int at = head * layer.head_dim;
    LoadHead(layer, page, row, head, k + at, v + at);
  }
}

void LoadKv(const KvLayerView& layer, const std::byte* const* pages, int64_t position, float* k,
            float* v) {
  const int64_t slot = SlotOfPosition(position, layer.sink_rows);
  const int dim = layer.head_dim;
  float k_term[kMaxHeadDim];
  float v_term[kMaxHeadDim];
  for (int head = 0; head < layer.kv_heads; ++head, k += dim, v += dim) {
    LoadHead(layer, pages[slot / layer.page_tokens], static_cast<int>(slot % layer.page_tokens),
             head, k, v);
    if (position == 0 && HasSecondTerm(layer)) {
      LoadHead(layer, pages[0], 0, head, k_term, v_term);
      Add(k_term, dim, k);
      Add(v_term, dim, v);
    }
    if (layer.k_centre != nullptr) Add(layer.k_centre + head * dim, dim, k);
    if (layer.v_centre != nullptr) Add(layer.v_centre + head * dim, dim, v);
  }
}

}  // namespace sluice::kernels
