// Shapes and layouts that kernels take: plain structs, no dependencies. The layer above fills them
// in.
#pragma once

#include <cstdint>

namespace sluice::kernels {

// How one layer of a page stores keys and values. H = kv_heads, P = page_tokens, D = head_dim.
enum class KvFormat : uint8_t {
  kF32,      // K [H][P][D] f32, V [H][P][D] f32.
  kBf16,     // K [H][P/16][D/2][16][2] bf16 (pairs along D), V [H][P][D] bf16.
  kGqaFp8,   // K codes [H][P/16][D/4][16][4] e4m3, K scales [H][P] UE8M0, V codes [H][P][D] e4m3, V
             // scales [H][P] UE8M0.
  kGqaFp8c,  // As kGqaFp8 with UE5M3 scales, centred, with a second term.
  kGqaInt8c,  // As kGqaFp8c with int8 codes and bf16 scales: value = code * scale.
  // Of latent attention only (MlaLayerView), as are kF32 and kBf16 in its own component order:
  kMlaFp8,       // latent codes [P][L] e4m3, rope codes [P][R] int8, latent scales [P] UE8M0, rope
                 // scales [P] bf16
  kMlaFp8Tiles,  // [P][L e4m3 | ceil(L/128) x f32 | R bf16], a scale for each 128 of the latent;
                 // L = 512 and R = 64 give the 656 bytes a token of FlashMLA
};

// How a format writes a value of K or V.
enum class KvCode : uint8_t { kF32, kBf16, kE4m3, kInt8 };

static constexpr KvCode KvCodeOf(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return KvCode::kF32;
    case KvFormat::kBf16:
      return KvCode::kBf16;
    case KvFormat::kGqaFp8:
    case KvFormat::kGqaFp8c:
      return KvCode::kE4m3;
    case KvFormat::kGqaInt8c:
      return KvCode::kInt8;
    case KvFormat::kMlaFp8:
    case KvFormat::kMlaFp8Tiles:
      break;  // latents: not K and V
  }
  return KvCode::kF32;
}

// How a format writes the scale of a row of K or V: value = code * scale.
enum class KvScale : uint8_t { kNone, kUe8m0, kUe5m3, kBf16 };

static constexpr KvScale KvScaleOf(KvFormat format) {
  switch (format) {
    case KvFormat::kGqaFp8:
      return KvScale::kUe8m0;
    case KvFormat::kGqaFp8c:
      return KvScale::kUe5m3;
    case KvFormat::kGqaInt8c:
      return KvScale::kBf16;
    case KvFormat::kF32:
    case KvFormat::kBf16:
    case KvFormat::kMlaFp8:
    case KvFormat::kMlaFp8Tiles:
      break;  // none, or those of latents
  }
  return KvScale::kNone;
}

// Bytes of one such scale.
static constexpr int KvScaleBytes(KvScale scale) {
  return scale == KvScale::kNone ? 0 : scale == KvScale::kBf16 ? 2 : 1;
}

// Centred: K - c_k and V - c_v are stored, with fixed vectors c of each layer, head and channel.
// Exact in attention: q.(k - c) misses the same q.c for every key of a query, which softmax does
// not see, and c_v is added to the output, because weights add up to 1.
//
// Second term: position 0 of a sequence draws much attention and has an outlying norm. Its slot
// holds Q(x) as every slot, the sink row before it holds Q(x - Q(x)); attention takes their sum.
static constexpr bool IsCentred(KvFormat format) {
  return format == KvFormat::kGqaFp8c || format == KvFormat::kGqaInt8c;
}

// Tokens of one interleaved K block: one 64-byte load then feeds 16 tokens and no horizontal sum is
// needed.
inline constexpr int kKvBlockTokens = 16;

// Where one layer's keys and values lie inside a page. Offsets are bytes from the start of the
// page; every component starts at a multiple of 64. Scale offsets are read only by formats that
// have scales. Needs: page_tokens a multiple of 16; head_dim a multiple of 16, at most 256;
// sink_rows >= 0, at most 1 in a centred format.
struct KvLayerView {
  KvFormat format = KvFormat::kF32;
  int page_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Slots at the start of a sequence that hold no token of their own: of a centred format the
  // second term of position 0 (without a sink row it has one term), of others nothing.
  int sink_rows = 0;
  // Vectors that a centred format subtracts, [kv_heads][head_dim] float32; null: zero.
  const float* k_centre = nullptr;
  const float* v_centre = nullptr;
  uint32_t k_offset = 0;
  uint32_t k_scale_offset = 0;
  uint32_t v_offset = 0;
  uint32_t v_scale_offset = 0;
};

// The same for multi-head latent attention, where all heads share one row per token: a latent of L
// elements, which is both key and value, and a rotated key of R elements (halves, not
// interleaved). kF32 and kBf16: latent [P][L], rope [P][R]. Needs: page_tokens, latent and rope
// multiples of 16.
struct MlaLayerView {
  KvFormat format = KvFormat::kF32;
  int page_tokens = 0;
  int latent = 0;
  int rope = 0;
  uint32_t latent_offset = 0;  // kMlaFp8Tiles: of the whole rows; the other offsets are not read
  uint32_t rope_offset = 0;
  uint32_t latent_scale_offset = 0;  // kMlaFp8
  uint32_t rope_scale_offset = 0;    // kMlaFp8
  // Of layers that pick the positions they attend: index keys of `index` elements, with kF32
  // [P][index] f32, else codes [P][index] e4m3 and scales [P] f32. 0: the layer has none.
  int index = 0;
  uint32_t index_offset = 0;
  uint32_t index_scale_offset = 0;

  int width() const { return latent + rope; }
};

// Elements of the latent that share a scale in kMlaFp8Tiles.
inline constexpr int kMlaScaleTile = 128;
// Bytes of one token of kMlaFp8Tiles.
inline constexpr int64_t MlaTilesRowBytes(int latent, int rope) {
  return latent + 4 * ((latent + kMlaScaleTile - 1) / kMlaScaleTile) + 2 * rope;
}

// The slot that holds `position` of a sequence: page `slot / page_tokens` of its block table, row
// `slot % page_tokens`. The only place that knows this mapping.
inline constexpr int64_t SlotOfPosition(int64_t position, int sink_rows) {
  return position + sink_rows;
}

// Whether slot 0 holds the second term of position 0, which lies in slot 1.
static constexpr bool HasSecondTerm(const KvLayerView& layer) {
  return IsCentred(layer.format) && layer.sink_rows == 1;
}

}  // namespace sluice::kernels
