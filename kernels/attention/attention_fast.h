// The fast attention, written once for any vector width. Included only by the files of one instruction set, each with its
// own Simd: everything here has internal linkage, so that no AVX-512 copy can reach a processor without it.
//
// Arithmetic, the same for one row and for many: a score is one chain of fused multiply-adds over ascending channels;
// weighted values are one chain over ascending slots; sums of weights go lane by lane over ascending blocks and end in
// one fixed tree. How many vectors and slots a register tile holds changes none of these chains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention/attention_impl.h"

// Register tiles are arrays indexed by loops of constant length: unrolled early, they live in registers.
#if defined(__clang__)
#define SLUICE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SLUICE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace sluice::kernels::attention_internal {
namespace {

// Slots expanded to f32 at a time: K and V of 64 slots fit L1 together with the vectors they meet.
constexpr int kGroup = 64;
constexpr int kBlock = kKvBlockTokens;
constexpr int kGroupBlocks = kGroup / kBlock;
constexpr int kTileVectors = 4;  // query vectors of a register tile

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

// A page's pieces are too short for the processor's own prefetcher to be of use: it would still be learning when a page
// ends. With few query vectors the tile is bound by memory, so while K of block b is used, V of block b is fetched, and
// while V is used, K of the next tile: half a tile ahead, about a microsecond. The bits do not know.
constexpr int kPrefetchVectors = 16;

inline void PrefetchLines(const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

inline int64_t BlockBytes(const KvLayerView& layer) {
  const int value_bytes = layer.format == KvFormat::kF32 ? 4 : layer.format == KvFormat::kBf16 ? 2 : 1;
  return int64_t{kBlock} * layer.head_dim * value_bytes;
}

inline const std::byte* BlockStart(BlockAt at, uint32_t component, int64_t block_bytes) {
  return at.page + component + at.row / kBlock * block_bytes;
}

inline void PrefetchV(const TileArgs& args, int block) {
  if (args.vectors > kPrefetchVectors) return;
  const int64_t bytes = BlockBytes(*args.layer);
  PrefetchLines(BlockStart(FindBlock(args, block), args.layer->v_offset, bytes), bytes);
}

inline void PrefetchNextK(const TileArgs& args, int block) {
  if (args.vectors > kPrefetchVectors || block * kBlock >= args.next.slots) return;
  const KvLayerView& layer = *args.layer;
  const BlockAt at = FindBlock(args, args.next.kv_head, args.next.first_slot + int64_t{block} * kBlock);
  const int64_t bytes = BlockBytes(layer);
  PrefetchLines(BlockStart(at, layer.k_offset, bytes), bytes);
  if (layer.format == KvFormat::kGqaFp8) {
    __builtin_prefetch(at.page + layer.k_scale_offset + at.row, 0, 2);
    __builtin_prefetch(at.page + layer.v_scale_offset + at.row, 0, 2);
  }
}

// The working memory of one tile.
struct TileMemory {
  explicit TileMemory(const TileArgs& args)
      : k(args.scratch),
        v(k + int64_t{kGroup} * args.layer->head_dim),
        k_scales(v + int64_t{kGroup} * args.layer->head_dim),
        v_scales(k_scales + kTile),
        scores(v_scales + kTile) {}

  float* k;         // [kGroup / 16][head_dim][16]
  float* v;         // [kGroup][head_dim]
  float* k_scales;  // [kTile]
  float* v_scales;  // [kTile]
  float* scores;    // [vectors][kTile]: scores, then weights times v scale
};

// How a register tile gets at K and V: as the page holds them, or expanded to f32 before. `block` is the start of a block of
// 16 slots. Keys gives kChannels channels of the block's 16 slots from channel d on; Values gives 16 * kBlocks channels
// of row t of the block from channel d on. The numbers are the same either way.
struct E4m3Source {
  static constexpr int kChannels = 4;
  template <class Simd>
  static void Keys(const std::byte* block, int d, typename Simd::Vec (&keys)[4][Simd::kParts]) {
    Simd::LoadE4m3Quads(block + d * kBlock, keys);
  }
  template <class Simd, int kBlocks>
  static void Values(const std::byte* block, int t, int dim, int d, typename Simd::Vec (&values)[kBlocks * Simd::kParts]) {
    static_assert(kBlocks == 4);
    Simd::LoadE4m3(block + t * dim + d, values);
  }
};

struct Bf16Source {
  static constexpr int kChannels = 2;
  template <class Simd>
  static void Keys(const std::byte* block, int d, typename Simd::Vec (&keys)[2][Simd::kParts]) {
    Simd::LoadBf16Pairs(block + d * kBlock * 2, keys);
  }
  template <class Simd, int kBlocks>
  static void Values(const std::byte* block, int t, int dim, int d, typename Simd::Vec (&values)[kBlocks * Simd::kParts]) {
    SLUICE_UNROLL
    for (int i = 0; i < kBlocks * Simd::kParts; ++i) {
      values[i] = Simd::LoadBf16(block + (t * dim + d + i * Simd::kLanes) * 2);
    }
  }
};

struct F32Source {
  static constexpr int kChannels = 1;
  template <class Simd>
  static void Keys(const std::byte* block, int d, typename Simd::Vec (&keys)[1][Simd::kParts]) {
    const float* from = reinterpret_cast<const float*>(block) + d * kBlock;
    SLUICE_UNROLL
    for (int h = 0; h < Simd::kParts; ++h) keys[0][h] = Simd::Load(from + h * Simd::kLanes);
  }
  template <class Simd, int kBlocks>
  static void Values(const std::byte* block, int t, int dim, int d, typename Simd::Vec (&values)[kBlocks * Simd::kParts]) {
    const float* from = reinterpret_cast<const float*>(block) + t * dim + d;
    SLUICE_UNROLL
    for (int i = 0; i < kBlocks * Simd::kParts; ++i) values[i] = Simd::Load(from + i * Simd::kLanes);
  }
};

// K of one block as f32 [head_dim][16].
template <class Simd, class Source>
void ExpandKeys(const std::byte* block, int dim, float* to) {
  typename Simd::Vec keys[Source::kChannels][Simd::kParts];
  for (int d = 0; d < dim; d += Source::kChannels) {
    Source::template Keys<Simd>(block, d, keys);
    SLUICE_UNROLL
    for (int i = 0; i < Source::kChannels * Simd::kParts; ++i) {
      Simd::Store(to + d * kBlock + i * Simd::kLanes, keys[i / Simd::kParts][i % Simd::kParts]);
    }
  }
}

// V of one block as f32 [16][head_dim].
template <class Simd, class Source>
void ExpandValues(const std::byte* block, int dim, float* to) {
  typename Simd::Vec values[4 * Simd::kParts];
  for (int i = 0; i < kBlock * dim; i += 4 * kBlock) {
    Source::template Values<Simd, 4>(block, 0, 0, i, values);
    SLUICE_UNROLL
    for (int part = 0; part < 4 * Simd::kParts; ++part) Simd::Store(to + i + part * Simd::kLanes, values[part]);
  }
}

template <class Simd>
void ExpandK(KvFormat format, const std::byte* block, int dim, float* to) {
  switch (format) {
    case KvFormat::kGqaFp8:
      ExpandKeys<Simd, E4m3Source>(block, dim, to);
      break;
    case KvFormat::kBf16:
      ExpandKeys<Simd, Bf16Source>(block, dim, to);
      break;
    case KvFormat::kF32:  // [16][head_dim] in the page: for checking, so without haste
      for (int t = 0; t < kBlock; ++t) {
        for (int d = 0; d < dim; ++d) std::memcpy(to + d * kBlock + t, block + (t * dim + d) * 4, 4);
      }
      break;
  }
}

template <class Simd>
void ExpandV(KvFormat format, const std::byte* block, int dim, float* to) {
  switch (format) {
    case KvFormat::kGqaFp8:
      ExpandValues<Simd, E4m3Source>(block, dim, to);
      break;
    case KvFormat::kBf16:
      ExpandValues<Simd, Bf16Source>(block, dim, to);
      break;
    case KvFormat::kF32:
      std::memcpy(to, block, static_cast<size_t>(kBlock * dim) * 4);
      break;
  }
}

// Scales of the tile's slots; 1 where the format has none, which changes no bit.
template <class Simd>
void ExpandScales(const TileArgs& args, int blocks, const TileMemory& memory) {
  const KvLayerView& layer = *args.layer;
  for (int b = 0; b < blocks; ++b) {
    if (layer.format == KvFormat::kGqaFp8) {
      const BlockAt at = FindBlock(args, b);
      Simd::ExpandUe8m0(at.page + layer.k_scale_offset + at.row, memory.k_scales + b * kBlock);
      Simd::ExpandUe8m0(at.page + layer.v_scale_offset + at.row, memory.v_scales + b * kBlock);
    } else {
      for (int i = b * kBlock; i < (b + 1) * kBlock; ++i) memory.k_scales[i] = memory.v_scales[i] = 1.0f;
    }
  }
}

// Calls fn<n>() for n = 1..kTileVectors.
template <class Fn>
void WithVectors(int n, Fn fn) {
  switch (n) {
    case 4:
      return fn.template operator()<4>();
    case 3:
      return fn.template operator()<3>();
    case 2:
      return fn.template operator()<2>();
    default:
      return fn.template operator()<1>();
  }
}

// Scores of kVectors query vectors against kBlocks blocks of 16 slots.
template <class Simd, class Source, int kVectors, int kBlocks>
void ScoreTile(const float* q, int dim, const std::byte* const* blocks, const float* k_scales, float* scores) {
  using Vec = typename Simd::Vec;
  constexpr int kParts = Simd::kParts;
  Vec acc[kVectors][kBlocks * kParts];
  SLUICE_UNROLL
  for (int m = 0; m < kVectors; ++m) {
    SLUICE_UNROLL
    for (int b = 0; b < kBlocks * kParts; ++b) acc[m][b] = Simd::Zero();
  }
  for (int d = 0; d < dim; d += Source::kChannels) {
    SLUICE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      Vec keys[Source::kChannels][kParts];
      Source::template Keys<Simd>(blocks[b], d, keys);
      SLUICE_UNROLL
      for (int c = 0; c < Source::kChannels; ++c) {
        SLUICE_UNROLL
        for (int h = 0; h < kParts; ++h) Simd::Keep(keys[c][h]);
        SLUICE_UNROLL
        for (int m = 0; m < kVectors; ++m) {
          const Vec query = Simd::Set1(q[int64_t{m} * dim + d + c]);
          SLUICE_UNROLL
          for (int h = 0; h < kParts; ++h) acc[m][b * kParts + h] = Simd::Fma(query, keys[c][h], acc[m][b * kParts + h]);
        }
      }
    }
  }
  SLUICE_UNROLL
  for (int b = 0; b < kBlocks * kParts; ++b) {
    const Vec scale = Simd::Load(k_scales + b * Simd::kLanes);
    SLUICE_UNROLL
    for (int m = 0; m < kVectors; ++m) {
      Simd::Store(scores + int64_t{m} * kTile + b * Simd::kLanes, Simd::Mul(acc[m][b], scale));
    }
  }
}

// Scores of all vectors against up to kGroupBlocks blocks; `group` is their place in the tile.
template <class Simd, class Source>
void ScoreGroup(const TileArgs& args, int group, int count, const std::byte* const* blocks, const TileMemory& memory) {
  const int dim = args.layer->head_dim;
  for (int i = 0; i < args.vectors; i += kTileVectors) {
    WithVectors(Min(kTileVectors, args.vectors - i), [&]<int kVectors>() {
      constexpr int kBlocks = Simd::template kScoreBlocks<Source, kVectors>;
      const float* q = args.q + int64_t{i} * dim;
      const float* scales = memory.k_scales + group * kGroup;
      float* scores = memory.scores + int64_t{i} * kTile + group * kGroup;
      int b = 0;
      for (; b + kBlocks <= count; b += kBlocks) {
        ScoreTile<Simd, Source, kVectors, kBlocks>(q, dim, blocks + b, scales + b * kBlock, scores + b * kBlock);
      }
      for (; b < count; ++b) {
        ScoreTile<Simd, Source, kVectors, 1>(q, dim, blocks + b, scales + b * kBlock, scores + b * kBlock);
      }
    });
  }
}

// Turns one vector's scores into weights: exp2(score - maximum) times the scale of the value it will multiply.
template <class Simd>
void Softmax(int begin, int end, const float* v_scales, float* scores, float* partial) {
  using Vec = typename Simd::Vec;
  const int first = begin / kBlock * kBlock;
  Vec max = Simd::Set1(-__builtin_inff());
  for (int t = first; t < end; t += Simd::kLanes) {
    max = Simd::Max(max, Simd::Select(Simd::Load(scores + t), begin - t, end - t, Simd::Set1(-__builtin_inff())));
  }
  partial[0] = Simd::ReduceMax(max);
  const Vec shift = Simd::Set1(partial[0]);
  Vec sum[Simd::kParts];
  for (Vec& part : sum) part = Simd::Zero();
  for (int t = first; t < end; t += kBlock) {
    for (int h = 0; h < Simd::kParts; ++h) {
      const int at = t + h * Simd::kLanes;
      const Vec weight = Simd::Exp2(Simd::Sub(Simd::Load(scores + at), shift));
      const Vec valid = Simd::Select(weight, begin - at, end - at, Simd::Zero());
      sum[h] = Simd::Add(sum[h], valid);
      Simd::Store(scores + at, Simd::Mul(valid, Simd::Load(v_scales + at)));
    }
  }
  for (int h = 1; h < Simd::kParts; ++h) sum[0] = Simd::Add(sum[0], sum[h]);
  partial[1] = Simd::ReduceAdd(sum[0]);
}

// acc[m][0, 16 * kBlocks) += weights[m][t] * v[t][d...], t ascending over slots [begin, end) of the group.
template <class Simd, class Source, int kVectors, int kBlocks>
void ValueTile(const float* weights, const std::byte* const* blocks, int dim, int d, int begin, int end, float* acc) {
  using Vec = typename Simd::Vec;
  constexpr int kParts = kBlocks * Simd::kParts;
  const int64_t stride = PartialFloats(dim);
  Vec sums[kVectors][kParts];
  SLUICE_UNROLL
  for (int m = 0; m < kVectors; ++m) {
    SLUICE_UNROLL
    for (int i = 0; i < kParts; ++i) sums[m][i] = Simd::Load(acc + m * stride + i * Simd::kLanes);
  }
  for (int t = begin; t < end; ++t) {
    Vec values[kParts];
    Source::template Values<Simd, kBlocks>(blocks[t / kBlock], t % kBlock, dim, d, values);
    SLUICE_UNROLL
    for (int i = 0; i < kParts; ++i) Simd::Keep(values[i]);
    SLUICE_UNROLL
    for (int m = 0; m < kVectors; ++m) {
      const Vec weight = Simd::Set1(weights[int64_t{m} * kTile + t]);
      SLUICE_UNROLL
      for (int i = 0; i < kParts; ++i) sums[m][i] = Simd::Fma(weight, values[i], sums[m][i]);
    }
  }
  SLUICE_UNROLL
  for (int m = 0; m < kVectors; ++m) {
    SLUICE_UNROLL
    for (int i = 0; i < kParts; ++i) Simd::Store(acc + m * stride + i * Simd::kLanes, sums[m][i]);
  }
}

template <class Simd, class Source, int kVectors>
void ValueVectors(const float* weights, const std::byte* const* blocks, int dim, int begin, int end, float* acc) {
  constexpr int kBlocks = Simd::template kValueBlocks<Source>;
  int d = 0;
  for (; d + kBlocks * kBlock <= dim; d += kBlocks * kBlock) {
    ValueTile<Simd, Source, kVectors, kBlocks>(weights, blocks, dim, d, begin, end, acc + d);
  }
  if constexpr (kBlocks > 1 && Source::kChannels == 1) {  // other sources are used only where this rest is empty
    for (; d < dim; d += kBlock) ValueTile<Simd, Source, kVectors, 1>(weights, blocks, dim, d, begin, end, acc + d);
  }
}

// Adds one group's slots [begin, ends[i]) to the accumulators of all vectors. Vectors of a register tile run together as
// far as all of them go; the rest of the longer ones follows alone.
template <class Simd, class Source>
void ValueGroup(const TileArgs& args, int group, int begin, const std::byte* const* blocks, const TileMemory& memory) {
  const int dim = args.layer->head_dim;
  for (int i = 0; i < args.vectors; i += kTileVectors) {
    const float* weights = memory.scores + int64_t{i} * kTile + group * kGroup;
    float* acc = args.partials + i * PartialFloats(dim) + kPartialHead;
    const int vectors = Min(kTileVectors, args.vectors - i);
    // Ends ascend: the first vector of the tile is the shortest.
    const int common = Max(begin, Min(kGroup, args.ends[i] - group * kGroup));
    WithVectors(vectors, [&]<int kVectors>() {
      ValueVectors<Simd, Source, kVectors>(weights, blocks, dim, begin, common, acc);
    });
    for (int m = 1; m < vectors; ++m) {
      const int end = Min(kGroup, args.ends[i + m] - group * kGroup);
      if (end <= common) continue;
      ValueVectors<Simd, Source, 1>(weights + int64_t{m} * kTile, blocks, dim, common, end, acc + m * PartialFloats(dim));
    }
  }
}

// The tile with register tiles fed by `Source`; F32Source means: expanded to f32 first.
template <class Simd, class Source>
void RunTile(const TileArgs& args) {
  constexpr bool kExpand = Source::kChannels == 1;
  const TileMemory memory(args);
  const KvLayerView& layer = *args.layer;
  const int dim = layer.head_dim;
  const int64_t block_bytes = BlockBytes(layer);
  const int last_end = args.ends[args.vectors - 1];
  const int blocks = (last_end + kBlock - 1) / kBlock;
  const std::byte* at[kGroupBlocks];
  ExpandScales<Simd>(args, blocks, memory);
  for (int group = 0; group * kGroupBlocks < blocks; ++group) {
    const int first = group * kGroupBlocks;
    const int count = Min(kGroupBlocks, blocks - first);
    for (int b = 0; b < count; ++b) {
      PrefetchV(args, first + b);
      at[b] = BlockStart(FindBlock(args, first + b), layer.k_offset, block_bytes);
      if constexpr (kExpand) {
        float* expanded = memory.k + int64_t{b} * kBlock * dim;
        ExpandK<Simd>(layer.format, at[b], dim, expanded);
        at[b] = reinterpret_cast<const std::byte*>(expanded);
      }
    }
    ScoreGroup<Simd, Source>(args, group, count, at, memory);
  }
  for (int i = 0; i < args.vectors; ++i) {
    float* partial = args.partials + i * PartialFloats(dim);
    Softmax<Simd>(args.begin, args.ends[i], memory.v_scales, memory.scores + int64_t{i} * kTile, partial);
    std::memset(partial + kPartialHead, 0, static_cast<size_t>(dim) * sizeof(float));
  }
  for (int group = args.begin / kGroup; group * kGroupBlocks < blocks; ++group) {
    const int first = group * kGroupBlocks;
    const int count = Min(kGroupBlocks, blocks - first);
    for (int b = 0; b < count; ++b) {
      PrefetchNextK(args, first + b);
      at[b] = BlockStart(FindBlock(args, first + b), layer.v_offset, block_bytes);
      if constexpr (kExpand) {
        float* expanded = memory.v + int64_t{b} * kBlock * dim;
        ExpandV<Simd>(layer.format, at[b], dim, expanded);
        at[b] = reinterpret_cast<const std::byte*>(expanded);
      }
    }
    ValueGroup<Simd, Source>(args, group, Max(0, args.begin - group * kGroup), at, memory);
  }
}

template <class Simd>
void FastTile(const TileArgs& args) {
  // One register tile of vectors uses every key once: expanding it to memory first would only cost time.
  if constexpr (Simd::kDirect) {
    if (args.vectors <= kTileVectors && args.layer->head_dim % 64 == 0) {
      if (args.layer->format == KvFormat::kGqaFp8) return RunTile<Simd, E4m3Source>(args);
      if (args.layer->format == KvFormat::kBf16) return RunTile<Simd, Bf16Source>(args);
    }
  }
  RunTile<Simd, F32Source>(args);
}

template <class Simd>
void FastMerge(float* state, const float* partial, int head_dim) {
  using Vec = typename Simd::Vec;
  const float max = state[0] > partial[0] ? state[0] : partial[0];
  const Vec old_weight = Simd::Exp2(Simd::Set1(state[0] - max));
  const Vec new_weight = Simd::Exp2(Simd::Set1(partial[0] - max));
  state[0] = max;
  const Vec sum = Simd::Fma(Simd::Set1(state[1]), old_weight, Simd::Mul(Simd::Set1(partial[1]), new_weight));
  state[1] = Simd::First(sum);
  for (int d = kPartialHead; d < kPartialHead + head_dim; d += Simd::kLanes) {
    const Vec added = Simd::Mul(Simd::Load(partial + d), new_weight);
    Simd::Store(state + d, Simd::Fma(Simd::Load(state + d), old_weight, added));
  }
}

template <class Simd>
void FastFinish(const float* state, int head_dim, float* out) {
  const typename Simd::Vec factor = Simd::Set1(1.0f / state[1]);
  for (int d = 0; d < head_dim; d += Simd::kLanes) {
    Simd::Store(out + d, Simd::Mul(Simd::Load(state + kPartialHead + d), factor));
  }
}

constexpr float kLog2E = 1.44269504f;

// 2^f = 1 + f (c1 + f (c2 + ...)) on [-0.5, 0.5]: minimax with relative error 2e-9, so float32 rounding decides.
constexpr float kExp2C1 = 0.6931471824645996f;
constexpr float kExp2C2 = 0.24022647738456726f;
constexpr float kExp2C3 = 0.055503323674201965f;
constexpr float kExp2C4 = 0.00961843691766262f;
constexpr float kExp2C5 = 0.0013398873852565885f;
constexpr float kExp2C6 = 0.00015353361959569156f;
// Weights below 2^-126 would be subnormal; they are nothing beside the maximum's weight of 1.
constexpr float kExp2Min = -126.0f;

}  // namespace
}  // namespace sluice::kernels::attention_internal
