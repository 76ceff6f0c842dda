// How the fast attention reads pages: where a block of 16 slots lies, and the conversions of each
// format, for any vector width. Included only by attention_fast.h; everything has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention/attention_impl.h"
#include "kernels/unroll.h"

namespace sluice::kernels::attention_internal {
namespace {

// Slots expanded to f32 at a time: K and V of 64 slots fit L1 together with the vectors they meet.
constexpr int kGroup = 64;
constexpr int kBlock = kKvBlockTokens;
constexpr int kGroupBlocks = kGroup / kBlock;

inline int Min(int a, int b) { return a < b ? a : b; }
inline int Max(int a, int b) { return a > b ? a : b; }

// Where one block of 16 slots lies.
struct BlockAt {
  const std::byte* page;
  int64_t row;  // index of (head, slot) in a [H][P] component
};

inline BlockAt FindBlock(const TileArgs& args, int kv_head, int64_t slot) {
  const int page_tokens = args.layer->page_tokens;
  return {args.pages[slot / page_tokens], int64_t{kv_head} * page_tokens + slot % page_tokens};
}

inline BlockAt FindBlock(const TileArgs& args, int block) {
  return FindBlock(args, args.kv_head, args.first_slot + int64_t{block} * kBlock);
}

inline int64_t BlockBytes(const KvLayerView& layer) {
  const KvCode code = KvCodeOf(layer.format);
  const int value_bytes = code == KvCode::kF32 ? 4 : code == KvCode::kBf16 ? 2 : 1;
  return int64_t{kBlock} * layer.head_dim * value_bytes;
}

inline const std::byte* BlockStart(BlockAt at, uint32_t component, int64_t block_bytes) {
  return at.page + component + at.row / kBlock * block_bytes;
}

// K of a block of the tile that comes next; null when nothing follows. Fetches the block's scales,
// too.
inline const std::byte* NextKeys(const TileArgs& args, int block) {
  if (block * kBlock >= args.next.slots) return nullptr;
  const KvLayerView& layer = *args.layer;
  const BlockAt at =
      FindBlock(args, args.next.kv_head, args.next.first_slot + int64_t{block} * kBlock);
  const int scale_bytes = KvScaleBytes(KvScaleOf(layer.format));
  if (scale_bytes > 0) {
    __builtin_prefetch(at.page + layer.k_scale_offset + at.row * scale_bytes);
    __builtin_prefetch(at.page + layer.v_scale_offset + at.row * scale_bytes);
  }
  return BlockStart(at, layer.k_offset, BlockBytes(layer));
}

// How a register tile gets at K and V: as the page holds them, or expanded to f32 before. `block`
// is the start of a block of 16 slots. Keys gives kChannels channels of the block's 16 slots from
// channel d on; Values gives 16 * kBlocks channels of row t of the block from channel d on. The
// numbers are the same either way.
//
// A page's pieces are too short for the processor's own prefetcher: it is still learning when a
// piece ends. So every line of K that is read fetches the line at the same place of V of the same
// slots, and every line of V one of the next tile's K: half a tile ahead, about a microsecond. One
// by one, because a burst of fetches would hold up the loads behind it.
struct E4m3Source {
  static constexpr int kChannels = 4;
  static constexpr int kBytes = 1;  // per value in the page
  template <class Simd>
  static void Keys(const std::byte* block, int d, typename Simd::Vec (&keys)[4][Simd::kParts]) {
    Simd::LoadE4m3Quads(block + d * kBlock, keys);
  }
  template <class Simd, int kBlocks>
  static void Values(const std::byte* block, int t, int dim, int d,
                     typename Simd::Vec (&values)[kBlocks * Simd::kParts]) {
    static_assert(kBlocks == 4);
    Simd::LoadE4m3(block + t * dim + d, values);
  }
};

struct Int8Source {
  static constexpr int kChannels = 4;
  static constexpr int kBytes = 1;
  template <class Simd>
  static void Keys(const std::byte* block, int d, typename Simd::Vec (&keys)[4][Simd::kParts]) {
    Simd::LoadInt8Quads(block + d * kBlock, keys);
  }
  template <class Simd, int kBlocks>
  static void Values(const std::byte* block, int t, int dim, int d,
                     typename Simd::Vec (&values)[kBlocks * Simd::kParts]) {
    SLUICE_UNROLL
    for (int i = 0; i < kBlocks * Simd::kParts; ++i)
      values[i] = Simd::LoadInt8(block + t * dim + d + i * Simd::kLanes);
  }
};

struct Bf16Source {
  static constexpr int kChannels = 2;
  static constexpr int kBytes = 2;
  template <class Simd>
  static void Keys(const std::byte* block, int d, typename Simd::Vec (&keys)[2][Simd::kParts]) {
    Simd::LoadBf16Pairs(block + d * kBlock * 2, keys);
  }
  template <class Simd, int kBlocks>
  static void Values(const std::byte* block, int t, int dim, int d,
                     typename Simd::Vec (&values)[kBlocks * Simd::kParts]) {
    SLUICE_UNROLL
    for (int i = 0; i < kBlocks * Simd::kParts; ++i) {
      values[i] = Simd::LoadBf16(block + (t * dim + d + i * Simd::kLanes) * 2);
    }
  }
};

struct F32Source {
  static constexpr int kChannels = 1;
  static constexpr int kBytes = 0;  // reads no page, so it fetches nothing ahead
  template <class Simd>
  static void Keys(const std::byte* block, int d, typename Simd::Vec (&keys)[1][Simd::kParts]) {
    const float* from = reinterpret_cast<const float*>(block) + d * kBlock;
    SLUICE_UNROLL
    for (int h = 0; h < Simd::kParts; ++h) keys[0][h] = Simd::Load(from + h * Simd::kLanes);
  }
  template <class Simd, int kBlocks>
  static void Values(const std::byte* block, int t, int dim, int d,
                     typename Simd::Vec (&values)[kBlocks * Simd::kParts]) {
    const float* from = reinterpret_cast<const float*>(block) + t * dim + d;
    SLUICE_UNROLL
    for (int i = 0; i < kBlocks * Simd::kParts; ++i)
      values[i] = Simd::Load(from + i * Simd::kLanes);
  }
};

// K of one block as f32 [head_dim][16].
template <class Simd, class Source>
void ExpandKeys(const std::byte* block, const std::byte* ahead, int dim, float* to) {
  typename Simd::Vec keys[Source::kChannels][Simd::kParts];
  for (int d = 0; d < dim; d += Source::kChannels) {
    Source::template Keys<Simd>(block, d, keys);
    __builtin_prefetch(ahead + d * kBlock * Source::kBytes);
    SLUICE_UNROLL
    for (int i = 0; i < Source::kChannels * Simd::kParts; ++i) {
      Simd::Store(to + d * kBlock + i * Simd::kLanes, keys[i / Simd::kParts][i % Simd::kParts]);
    }
  }
}

// V of one block as f32 [16][head_dim].
template <class Simd, class Source>
void ExpandValues(const std::byte* block, const std::byte* ahead, int dim, float* to) {
  typename Simd::Vec values[4 * Simd::kParts];
  for (int i = 0; i < kBlock * dim; i += 4 * kBlock) {
    Source::template Values<Simd, 4>(block, 0, 0, i, values);
    SLUICE_UNROLL
    for (int line = 0; line < Source::kBytes; ++line)
      __builtin_prefetch(ahead + i * Source::kBytes + line * 64);
    SLUICE_UNROLL
    for (int part = 0; part < 4 * Simd::kParts; ++part)
      Simd::Store(to + i + part * Simd::kLanes, values[part]);
  }
}

template <class Simd>
void ExpandK(KvCode code, const std::byte* block, const std::byte* ahead, int dim, float* to) {
  switch (code) {
    case KvCode::kE4m3:
      ExpandKeys<Simd, E4m3Source>(block, ahead, dim, to);
      break;
    case KvCode::kInt8:
      ExpandKeys<Simd, Int8Source>(block, ahead, dim, to);
      break;
    case KvCode::kBf16:
      ExpandKeys<Simd, Bf16Source>(block, ahead, dim, to);
      break;
    case KvCode::kF32:  // [16][head_dim] in the page: for checking, so without haste
      for (int t = 0; t < kBlock; ++t) {
        for (int d = 0; d < dim; ++d)
          std::memcpy(to + d * kBlock + t, block + (t * dim + d) * 4, 4);
      }
      break;
  }
}

template <class Simd>
void ExpandV(KvCode code, const std::byte* block, const std::byte* ahead, int dim, float* to) {
  switch (code) {
    case KvCode::kE4m3:
      ExpandValues<Simd, E4m3Source>(block, ahead, dim, to);
      break;
    case KvCode::kInt8:
      ExpandValues<Simd, Int8Source>(block, ahead, dim, to);
      break;
    case KvCode::kBf16:
      ExpandValues<Simd, Bf16Source>(block, ahead, dim, to);
      break;
    case KvCode::kF32:
      std::memcpy(to, block, static_cast<size_t>(kBlock * dim) * 4);
      break;
  }
}

}  // namespace
}  // namespace sluice::kernels::attention_internal
