// Plain float32 over the dequantised values: the definition that the fast paths are tested against.
#include <cmath>

#include "kernels/attention/attention_impl.h"
#include "kernels/fp/fp.h"

namespace sluice::kernels::attention_internal {
namespace {

float Bf16At(const std::byte* component, int64_t index) {
  uint16_t code;
  std::memcpy(&code, component + index * 2, 2);
  return Bf16ToFloat(code);
}

float F32At(const std::byte* component, int64_t index) {
  float value;
  std::memcpy(&value, component + index * 4, 4);
  return value;
}

float E4m3At(const std::byte* component, int64_t index) {
  return E4m3ToFloat(static_cast<uint8_t>(component[index]));
}

float Int8At(const std::byte* component, int64_t index) {
  return static_cast<float>(static_cast<int8_t>(component[index]));
}

float ByteScale(KvFormat format, std::byte code) {
  const auto byte = static_cast<uint8_t>(code);
  return KvScaleOf(format) == KvScale::kUe5m3 ? Ue5m3ToFloat(byte) : Ue8m0ToFloat(byte);
}

// k[d] and v[d] of one slot as the page stores them.
void LoadSlot(const TileArgs& args, int64_t slot, float* k, float* v) {
  const KvLayerView& layer = *args.layer;
  const int dim = layer.head_dim;
  const std::byte* page = args.pages[slot / layer.page_tokens];
  const std::byte* k_at = page + layer.k_offset;
  const std::byte* v_at = page + layer.v_offset;
  const int64_t row = int64_t{args.kv_head} * layer.page_tokens + slot % layer.page_tokens;
  const int64_t block =
      row / kKvBlockTokens * kKvBlockTokens * dim;  // first element of the row's K block
  const int64_t lane = row % kKvBlockTokens;
  for (int d = 0; d < dim; ++d) {
    switch (KvCodeOf(layer.format)) {
      case KvCode::kF32:
        k[d] = F32At(k_at, row * dim + d);
        v[d] = F32At(v_at, row * dim + d);
        break;
      case KvCode::kBf16:
        k[d] = Bf16At(k_at, block + d / 2 * 32 + lane * 2 + d % 2);
        v[d] = Bf16At(v_at, row * dim + d);
        break;
      case KvCode::kE4m3:
        k[d] = E4m3At(k_at, block + d / 4 * 64 + lane * 4 + d % 4) *
               ByteScale(layer.format, page[layer.k_scale_offset + row]);
        v[d] =
            E4m3At(v_at, row * dim + d) * ByteScale(layer.format, page[layer.v_scale_offset + row]);
        break;
      case KvCode::kInt8:
        k[d] = Int8At(k_at, block + d / 4 * 64 + lane * 4 + d % 4) *
               Bf16At(page + layer.k_scale_offset, row);
        v[d] = Int8At(v_at, row * dim + d) * Bf16At(page + layer.v_scale_offset, row);
        break;
    }
  }
}

void Tile(const TileArgs& args) {
  const int dim = args.layer->head_dim;
  float* k = args.scratch;
  float* v = k + int64_t{kTile} * dim;
  float* scores = v + int64_t{kTile} * dim;
  const int last_end = args.ends[args.vectors - 1];
  for (int t = args.begin; t < last_end; ++t) {
    LoadSlot(args, args.first_slot + t, k + int64_t{t} * dim, v + int64_t{t} * dim);
  }
  if (args.second_term) {
    LoadSlot(args, args.first_slot, k, v);
    for (int d = 0; d < dim; ++d) k[dim + d] += k[d];
    for (int d = 0; d < dim; ++d) v[dim + d] += v[d];
  }
  for (int i = 0; i < args.vectors; ++i) {
    const float* q = args.q + int64_t{i} * dim;
    float* partial = args.partials + i * PartialFloats(dim);
    float max = -INFINITY;
    for (int t = args.begin; t < args.ends[i]; ++t) {
      float dot = 0;
      for (int d = 0; d < dim; ++d) dot += q[d] * k[int64_t{t} * dim + d];
      scores[t] = dot;
      max = dot > max ? dot : max;
    }
    float sum = 0;
    float* acc = partial + kPartialHead;
    for (int d = 0; d < dim; ++d) acc[d] = 0;
    for (int t = args.begin; t < args.ends[i]; ++t) {
      const float p = std::exp(scores[t] - max);
      sum += p;
      for (int d = 0; d < dim; ++d) acc[d] += p * v[int64_t{t} * dim + d];
    }
    partial[0] = max;
    partial[1] = sum;
  }
}

}  // namespace

const PathKernels kReference = {1.0f, Tile, ReferenceMerge, ReferenceFinish};

}  // namespace sluice::kernels::attention_internal
