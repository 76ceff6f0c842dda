// The fast attention, written once for any vector width. Included only by the files of one
// instruction set, each with its own Simd: everything here has internal linkage, so that no AVX-512
// copy can reach a processor without it.
//
// Arithmetic, the same for one row and for many: a score is one chain of fused multiply-adds over
// ascending channels; weighted values are one chain over ascending slots; sums of weights go lane
// by lane over ascending blocks and end in one fixed tree. How many vectors and slots a register
// tile holds changes none of these chains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention/attention_impl.h"
#include "kernels/attention/attention_pages.h"
#include "kernels/attention/partial_fast.h"

namespace sluice::kernels::attention_internal {
namespace {

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

// Scales of the tile's slots; 1 where the format has none, which changes no bit.
template <class Simd>
void ExpandScales(const TileArgs& args, int blocks, const TileMemory& memory) {
  const KvLayerView& layer = *args.layer;
  const KvScale kind = KvScaleOf(layer.format);
  for (int b = 0; b < blocks; ++b) {
    const BlockAt at = FindBlock(args, b);
    const std::byte* k_from = at.page + layer.k_scale_offset + at.row * KvScaleBytes(kind);
    const std::byte* v_from = at.page + layer.v_scale_offset + at.row * KvScaleBytes(kind);
    float* k_to = memory.k_scales + b * kBlock;
    float* v_to = memory.v_scales + b * kBlock;
    switch (kind) {
      case KvScale::kBf16:
        Simd::ExpandBf16(k_from, k_to);
        Simd::ExpandBf16(v_from, v_to);
        break;
      case KvScale::kUe8m0:
        Simd::ExpandUe8m0(k_from, k_to);
        Simd::ExpandUe8m0(v_from, v_to);
        break;
      case KvScale::kUe5m3:
        Simd::ExpandUe5m3(k_from, k_to);
        Simd::ExpandUe5m3(v_from, v_to);
        break;
      case KvScale::kNone:
        for (int i = 0; i < kBlock; ++i) k_to[i] = v_to[i] = 1.0f;
        break;
    }
  }
}

// Up to kGroupBlocks blocks of 16 slots, and for each the block to be fetched meanwhile.
struct Blocks {
  const std::byte* at[kGroupBlocks];
  const std::byte* ahead[kGroupBlocks];
};

// Scores of kVectors query vectors against kBlocks blocks of 16 slots, from block `first` on.
template <class Simd, class Source, int kVectors, int kBlocks>
void ScoreTile(const float* q, int dim, const Blocks& blocks, int first, const float* k_scales,
               float* scores) {
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
      Source::template Keys<Simd>(blocks.at[first + b], d, keys);
      if constexpr (Source::kBytes > 0)
        __builtin_prefetch(blocks.ahead[first + b] + d * kBlock * Source::kBytes, 0, 3);
      SLUICE_UNROLL
      for (int c = 0; c < Source::kChannels; ++c) {
        SLUICE_UNROLL
        for (int h = 0; h < kParts; ++h) Simd::Keep(keys[c][h]);
        SLUICE_UNROLL
        for (int m = 0; m < kVectors; ++m) {
          const Vec query = Simd::Set1(q[int64_t{m} * dim + d + c]);
          SLUICE_UNROLL
          for (int h = 0; h < kParts; ++h)
            acc[m][b * kParts + h] = Simd::Fma(query, keys[c][h], acc[m][b * kParts + h]);
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
void ScoreGroup(const TileArgs& args, int group, int count, const Blocks& blocks,
                const TileMemory& memory) {
  const int dim = args.layer->head_dim;
  for (int i = 0; i < args.vectors; i += kTileVectors) {
    WithVectors(Min(kTileVectors, args.vectors - i), [&]<int kVectors>() {
      constexpr int kBlocks = Simd::template kScoreBlocks<Source, kVectors>;
      const float* q = args.q + int64_t{i} * dim;
      const float* scales = memory.k_scales + group * kGroup;
      float* scores = memory.scores + int64_t{i} * kTile + group * kGroup;
      int b = 0;
      for (; b + kBlocks <= count; b += kBlocks) {
        ScoreTile<Simd, Source, kVectors, kBlocks>(q, dim, blocks, b, scales + b * kBlock,
                                                   scores + b * kBlock);
      }
      for (; b < count; ++b) {
        ScoreTile<Simd, Source, kVectors, 1>(q, dim, blocks, b, scales + b * kBlock,
                                             scores + b * kBlock);
      }
    });
  }
}

// Turns one vector's scores into weights: exp2(score - maximum) times the scale of the value it
// will multiply.
template <class Simd>
void Softmax(int begin, int end, const float* v_scales, float* scores, float* partial) {
  using Vec = typename Simd::Vec;
  const int first = begin / kBlock * kBlock;
  Vec max = Simd::Set1(-__builtin_inff());
  for (int t = first; t < end; t += Simd::kLanes) {
    max = Simd::Max(max, Simd::Select(Simd::Load(scores + t), begin - t, end - t,
                                      Simd::Set1(-__builtin_inff())));
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

// Softmax of one vector over slots [begin, end) of the tile. The second term lies in slot 0 beside
// its token in slot 1: its share of the score is added first, and it gets the weight of its token
// times the scale of its own value.
template <class Simd>
void WeighSlots(const TileArgs& args, int end, const float* v_scales, float* scores,
                float* partial) {
  if (!args.second_term) return Softmax<Simd>(args.begin, end, v_scales, scores, partial);
  const float score = scores[0] + scores[1];
  scores[1] = score;
  Softmax<Simd>(args.begin, end, v_scales, scores, partial);
  scores[0] = Simd::First(Simd::Exp2(Simd::Set1(score - partial[0]))) * v_scales[0];
}

// acc[m][0, 16 * kBlocks) += weights[m][t] * v[t][d...], t ascending over slots [begin, end) of the
// group.
template <class Simd, class Source, int kVectors, int kBlocks>
void ValueTile(const float* weights, const Blocks& blocks, int dim, int d, int begin, int end,
               float* acc) {
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
    Source::template Values<Simd, kBlocks>(blocks.at[t / kBlock], t % kBlock, dim, d, values);
    SLUICE_UNROLL
    for (int line = 0; line < Source::kBytes; ++line) {
      __builtin_prefetch(
          blocks.ahead[t / kBlock] + (t % kBlock * dim + d) * Source::kBytes + line * 64, 0, 3);
    }
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
void ValueVectors(const float* weights, const Blocks& blocks, int dim, int begin, int end,
                  float* acc) {
  constexpr int kBlocks = Simd::template kValueBlocks<Source>;
  int d = 0;
  for (; d + kBlocks * kBlock <= dim; d += kBlocks * kBlock) {
    ValueTile<Simd, Source, kVectors, kBlocks>(weights, blocks, dim, d, begin, end, acc + d);
  }
  if constexpr (kBlocks > 1 &&
                Source::kChannels == 1) {  // other sources are used only where this rest is empty
    for (; d < dim; d += kBlock)
      ValueTile<Simd, Source, kVectors, 1>(weights, blocks, dim, d, begin, end, acc + d);
  }
}

// Adds one group's slots [begin, ends[i]) to the accumulators of all vectors. Vectors of a register
// tile run together as far as all of them go; the rest of the longer ones follows alone.
template <class Simd, class Source>
void ValueGroup(const TileArgs& args, int group, int begin, const Blocks& blocks,
                const TileMemory& memory) {
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
      ValueVectors<Simd, Source, 1>(weights + int64_t{m} * kTile, blocks, dim, common, end,
                                    acc + m * PartialFloats(dim));
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
  Blocks pointers = {};
  ExpandScales<Simd>(args, blocks, memory);
  for (int group = 0; group * kGroupBlocks < blocks; ++group) {
    const int first = group * kGroupBlocks;
    const int count = Min(kGroupBlocks, blocks - first);
    for (int b = 0; b < count; ++b) {
      const BlockAt at = FindBlock(args, first + b);
      pointers.at[b] = BlockStart(at, layer.k_offset, block_bytes);
      pointers.ahead[b] = BlockStart(at, layer.v_offset, block_bytes);
      if constexpr (kExpand) {
        float* expanded = memory.k + int64_t{b} * kBlock * dim;
        ExpandK<Simd>(KvCodeOf(layer.format), pointers.at[b], pointers.ahead[b], dim, expanded);
        pointers.at[b] = reinterpret_cast<const std::byte*>(expanded);
      }
    }
    ScoreGroup<Simd, Source>(args, group, count, pointers, memory);
  }
  for (int i = 0; i < args.vectors; ++i) {
    float* partial = args.partials + i * PartialFloats(dim);
    WeighSlots<Simd>(args, args.ends[i], memory.v_scales, memory.scores + int64_t{i} * kTile,
                     partial);
    std::memset(partial + kPartialHead, 0, static_cast<size_t>(dim) * sizeof(float));
  }
  const int values_begin = args.second_term ? 0 : args.begin;
  for (int group = values_begin / kGroup; group * kGroupBlocks < blocks; ++group) {
    const int first = group * kGroupBlocks;
    const int count = Min(kGroupBlocks, blocks - first);
    for (int b = 0; b < count; ++b) {
      pointers.at[b] = BlockStart(FindBlock(args, first + b), layer.v_offset, block_bytes);
      pointers.ahead[b] = NextKeys(args, first + b);
      if (pointers.ahead[b] == nullptr) pointers.ahead[b] = pointers.at[b];
      if constexpr (kExpand) {
        float* expanded = memory.v + int64_t{b} * kBlock * dim;
        ExpandV<Simd>(KvCodeOf(layer.format), pointers.at[b], pointers.ahead[b], dim, expanded);
        pointers.at[b] = reinterpret_cast<const std::byte*>(expanded);
      }
    }
    ValueGroup<Simd, Source>(args, group, Max(0, values_begin - group * kGroup), pointers, memory);
  }
}

template <class Simd>
void FastTile(const TileArgs& args) {
  // Few vectors: converting K and V in registers, twice at most, is cheaper than a way through
  // memory.
  if constexpr (Simd::kDirect) {
    if (args.vectors <= 2 * kTileVectors && args.layer->head_dim % 64 == 0) {
      const KvCode code = KvCodeOf(args.layer->format);
      if (code == KvCode::kE4m3) return RunTile<Simd, E4m3Source>(args);
      if (code == KvCode::kInt8) return RunTile<Simd, Int8Source>(args);
      if (code == KvCode::kBf16) return RunTile<Simd, Bf16Source>(args);
    }
  }
  RunTile<Simd, F32Source>(args);
}

}  // namespace
}  // namespace sluice::kernels::attention_internal
