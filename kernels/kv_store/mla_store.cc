#include "kernels/kv_store/mla_store.h"

#include <cfloat>
#include <cstring>

#include "base/check.h"
#include "kernels/fp/fp.h"
#include "kernels/kv_store/kv_store_impl.h"

namespace sluice::kernels {
namespace {

using kv_store_internal::RowKernels;

constexpr int kMaxRope = 256;

void CheckShape(const MlaLayerView& layer) {
  SLUICE_CHECK(layer.page_tokens > 0 && layer.page_tokens % kKvBlockTokens == 0 &&
               layer.latent > 0 && layer.latent % 16 == 0 && layer.rope > 0 &&
               layer.rope % 16 == 0 && layer.rope <= kMaxRope)
      << "page_tokens " << layer.page_tokens << ", latent " << layer.latent << ", rope "
      << layer.rope;
}

template <typename T>
T Read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The largest magnitude of x as a finite number.
float FiniteMax(const RowKernels& kernels, const float* x, int n) {
  const float amax = BitsFloat(kernels.max_magnitude(x, n));
  return amax <= FLT_MAX ? amax : FLT_MAX;
}

void StoreFp8(const RowKernels& kernels, const MlaLayerView& layer, std::byte* page, int row,
              const float* latent, const float* rope) {
  const uint8_t scale = Ue8m0ScaleFor(BitsFloat(kernels.max_magnitude(latent, layer.latent)));
  kernels.quantise_e4m3(
      latent, layer.latent, Ue8m0Inverse(scale),
      reinterpret_cast<uint8_t*>(page + layer.latent_offset + int64_t{row} * layer.latent));
  page[layer.latent_scale_offset + static_cast<size_t>(row)] = std::byte{scale};
  const uint16_t rope_scale = Int8ScaleFor(BitsFloat(kernels.max_magnitude(rope, layer.rope)));
  const float divisor = Bf16ToFloat(rope_scale);
  std::byte* const codes = page + layer.rope_offset + int64_t{row} * layer.rope;
  for (int i = 0; i < layer.rope; ++i) {
    codes[i] = static_cast<std::byte>(FloatToInt8(rope[i] / divisor));
  }
  std::memcpy(page + layer.rope_scale_offset + int64_t{row} * 2, &rope_scale, 2);
}

void StoreTiles(const RowKernels& kernels, const MlaLayerView& layer, std::byte* page, int row,
                const float* latent, const float* rope) {
  std::byte* const codes =
      page + layer.latent_offset + row * MlaTilesRowBytes(layer.latent, layer.rope);
  std::byte* scales = codes + layer.latent;
  for (int begin = 0; begin < layer.latent; begin += kMlaScaleTile, scales += 4) {
    const int n = layer.latent - begin < kMlaScaleTile ? layer.latent - begin : kMlaScaleTile;
    const float amax = FiniteMax(kernels, latent + begin, n);
    const float fitting = amax / kE4m3Max;
    const float scale = amax == 0 ? 1.0f : fitting > FLT_MIN ? fitting : FLT_MIN;
    kernels.quantise_e4m3(latent + begin, n, 1.0f / scale,
                          reinterpret_cast<uint8_t*>(codes + begin));
    std::memcpy(scales, &scale, 4);
  }
  uint16_t rounded[kMaxRope];
  kernels.round_bf16(rope, layer.rope, rounded);
  std::memcpy(scales, rounded, static_cast<size_t>(layer.rope) * 2);
}

void StorePlain(const RowKernels& kernels, KvFormat format, std::byte* component, int row,
                const float* x, int n) {
  if (format == KvFormat::kF32) {
    std::memcpy(component + int64_t{row} * n * 4, x, static_cast<size_t>(n) * 4);
    return;
  }
  kernels.round_bf16(x, n, reinterpret_cast<uint16_t*>(component + int64_t{row} * n * 2));
}

void LoadPlain(KvFormat format, const std::byte* component, int row, int n, float* out) {
  if (format == KvFormat::kF32) {
    std::memcpy(out, component + int64_t{row} * n * 4, static_cast<size_t>(n) * 4);
    return;
  }
  const std::byte* const from = component + int64_t{row} * n * 2;
  for (int i = 0; i < n; ++i) out[i] = Bf16ToFloat(Read<uint16_t>(from + i * 2));
}

void LoadE4m3(const std::byte* codes, int n, float scale, float* out) {
  for (int i = 0; i < n; ++i) out[i] = E4m3ToFloat(static_cast<uint8_t>(codes[i])) * scale;
}

}  // namespace

void StoreMla(IsaPath path, const MlaLayerView& layer, std::byte* const* pages,
              int64_t first_position, const MlaRows& rows, int row_begin, int row_end) {
  CheckShape(layer);
  const RowKernels& kernels = kv_store_internal::RowKernelsOf(path);
  for (int r = row_begin; r < row_end; ++r) {
    const int64_t position = first_position + r;
    std::byte* const page = pages[position / layer.page_tokens];
    const int row = static_cast<int>(position % layer.page_tokens);
    const float* const latent = rows.latent + r * rows.latent_stride;
    const float* const rope = rows.rope + r * rows.rope_stride;
    if (layer.format == KvFormat::kMlaFp8) {
      StoreFp8(kernels, layer, page, row, latent, rope);
    } else if (layer.format == KvFormat::kMlaFp8Tiles) {
      StoreTiles(kernels, layer, page, row, latent, rope);
    } else {
      StorePlain(kernels, layer.format, page + layer.latent_offset, row, latent, layer.latent);
      StorePlain(kernels, layer.format, page + layer.rope_offset, row, rope, layer.rope);
    }
  }
}

void LoadMlaRow(const MlaLayerView& layer, const std::byte* page, int row, float* out) {
  float* const rope = out + layer.latent;
  if (layer.format == KvFormat::kMlaFp8) {
    const auto scale =
        static_cast<uint8_t>(page[layer.latent_scale_offset + static_cast<size_t>(row)]);
    LoadE4m3(page + layer.latent_offset + int64_t{row} * layer.latent, layer.latent,
             Ue8m0ToFloat(scale), out);
    const float rope_scale =
        Bf16ToFloat(Read<uint16_t>(page + layer.rope_scale_offset + int64_t{row} * 2));
    const std::byte* const codes = page + layer.rope_offset + int64_t{row} * layer.rope;
    for (int i = 0; i < layer.rope; ++i) {
      rope[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * rope_scale;
    }
  } else if (layer.format == KvFormat::kMlaFp8Tiles) {
    const std::byte* const codes =
        page + layer.latent_offset + row * MlaTilesRowBytes(layer.latent, layer.rope);
    const std::byte* scales = codes + layer.latent;
    for (int begin = 0; begin < layer.latent; begin += kMlaScaleTile, scales += 4) {
      const int n = layer.latent - begin < kMlaScaleTile ? layer.latent - begin : kMlaScaleTile;
      LoadE4m3(codes + begin, n, Read<float>(scales), out + begin);
    }
    LoadPlain(KvFormat::kBf16, scales, 0, layer.rope, rope);
  } else {
    LoadPlain(layer.format, page + layer.latent_offset, row, layer.latent, out);
    LoadPlain(layer.format, page + layer.rope_offset, row, layer.rope, rope);
  }
}

void StoreMlaIndex(IsaPath path, const MlaLayerView& layer, std::byte* const* pages,
                   int64_t first_position, const float* keys, int64_t stride, int row_begin,
                   int row_end) {
  SLUICE_CHECK(layer.index > 0 && layer.index % 16 == 0) << "index " << layer.index;
  const RowKernels& kernels = kv_store_internal::RowKernelsOf(path);
  for (int r = row_begin; r < row_end; ++r) {
    const int64_t position = first_position + r;
    std::byte* const page = pages[position / layer.page_tokens];
    const int row = static_cast<int>(position % layer.page_tokens);
    const float* const key = keys + r * stride;
    if (layer.format == KvFormat::kF32) {
      StorePlain(kernels, KvFormat::kF32, page + layer.index_offset, row, key, layer.index);
      continue;
    }
    constexpr float kLeast = 1e-4f;
    const float amax = FiniteMax(kernels, key, layer.index);
    const float scale = (amax > kLeast ? amax : kLeast) / kE4m3Max;
    kernels.quantise_e4m3(
        key, layer.index, 1.0f / scale,
        reinterpret_cast<uint8_t*>(page + layer.index_offset + int64_t{row} * layer.index));
    std::memcpy(page + layer.index_scale_offset + int64_t{row} * 4, &scale, 4);
  }
}

void LoadMlaIndex(const MlaLayerView& layer, const std::byte* page, int row, float* out) {
  if (layer.format == KvFormat::kF32) {
    LoadPlain(KvFormat::kF32, page + layer.index_offset, row, layer.index, out);
    return;
  }
  LoadE4m3(page + layer.index_offset + int64_t{row} * layer.index, layer.index,
           Read<float>(page + layer.index_scale_offset + int64_t{row} * 4), out);
}

}  // namespace sluice::kernels
