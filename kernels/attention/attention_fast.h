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

inline BlockAt FindBlock(const TileArgs& args, int block) {
  const int64_t slot = args.first_slot + int64_t{block} * kBlock;
  const int page_tokens = args.layer->page_tokens;
  return {args.pages[slot / page_tokens], int64_t{args.kv_head} * page_tokens + slot % page_tokens};
}

// The working memory of one tile.
struct TileMemory {
  TileMemory(const TileArgs& args)  // NOLINT(google-explicit-constructor)
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

// K of one block as f32 [head_dim][16].
template <class Simd>
void ExpandK(const KvLayerView& layer, BlockAt at, float* k) {
  const int dim = layer.head_dim;
  const std::byte* from = at.page + layer.k_offset;
  switch (layer.format) {
    case KvFormat::kGqaFp8:
      from += at.row * dim;
      for (int d = 0; d < dim; d += 4) Simd::ExpandE4m3Quads(from + int64_t{d} * kBlock, k + int64_t{d} * kBlock);
      break;
    case KvFormat::kBf16:
      from += at.row * dim * 2;
      for (int d = 0; d < dim; d += 2) Simd::ExpandBf16Pairs(from + int64_t{d} * kBlock * 2, k + int64_t{d} * kBlock);
      break;
    case KvFormat::kF32:
      from += at.row * dim * 4;
      for (int t = 0; t < kBlock; ++t) {
        for (int d = 0; d < dim; ++d) std::memcpy(k + int64_t{d} * kBlock + t, from + (int64_t{t} * dim + d) * 4, 4);
      }
      break;
  }
}

// V of `rows` slots of one block as f32 [rows][head_dim].
template <class Simd>
void ExpandV(const KvLayerView& layer, BlockAt at, int rows, float* v) {
  const int64_t count = int64_t{rows} * layer.head_dim;
  const int64_t first = at.row * layer.head_dim;
  const std::byte* from = at.page + layer.v_offset;
  switch (layer.format) {
    case KvFormat::kGqaFp8:
      for (int64_t i = 0; i < count; i += 16) Simd::ExpandE4m3(from + first + i, v + i);
      break;
    case KvFormat::kBf16:
      for (int64_t i = 0; i < count; i += 16) Simd::ExpandBf16(from + (first + i) * 2, v + i);
      break;
    case KvFormat::kF32:
      std::memcpy(v, from + first * 4, static_cast<size_t>(count) * 4);
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

// Scores of kVectors query vectors against kBlocks blocks of 16 slots.
template <class Simd, int kVectors, int kBlocks>
void ScoreTile(const float* q, int dim, const float* k, const float* k_scales, float* scores) {
  using Vec = typename Simd::Vec;
  constexpr int kParts = kBlock / Simd::kLanes;
  Vec acc[kVectors][kBlocks * kParts];
  for (int m = 0; m < kVectors; ++m) {
    for (int b = 0; b < kBlocks * kParts; ++b) acc[m][b] = Simd::Zero();
  }
  for (int d = 0; d < dim; ++d) {
    Vec keys[kBlocks * kParts];
    for (int b = 0; b < kBlocks * kParts; ++b) {
      keys[b] = Simd::Load(k + (int64_t{b / kParts} * dim + d) * kBlock + b % kParts * Simd::kLanes);
    }
    for (int m = 0; m < kVectors; ++m) {
      const Vec query = Simd::Set1(q[int64_t{m} * dim + d]);
      for (int b = 0; b < kBlocks * kParts; ++b) acc[m][b] = Simd::Fma(query, keys[b], acc[m][b]);
    }
  }
  for (int b = 0; b < kBlocks * kParts; ++b) {
    const Vec scale = Simd::Load(k_scales + b * Simd::kLanes);
    for (int m = 0; m < kVectors; ++m) {
      Simd::Store(scores + int64_t{m} * kTile + b * Simd::kLanes, Simd::Mul(acc[m][b], scale));
    }
  }
}

template <class Simd, int kVectors>
void ScoreVectors(const float* q, int dim, int blocks, const float* k, const float* k_scales, float* scores) {
  int b = 0;
  for (; b + Simd::kScoreBlocks <= blocks; b += Simd::kScoreBlocks) {
    ScoreTile<Simd, kVectors, Simd::kScoreBlocks>(q, dim, k + int64_t{b} * dim * kBlock, k_scales + b * kBlock,
                                                  scores + b * kBlock);
  }
  for (; b < blocks; ++b) {
    ScoreTile<Simd, kVectors, 1>(q, dim, k + int64_t{b} * dim * kBlock, k_scales + b * kBlock, scores + b * kBlock);
  }
}

// Scores of all vectors against one expanded group.
template <class Simd>
void ScoreGroup(const TileArgs& args, int group, int blocks, const TileMemory& memory) {
  const int dim = args.layer->head_dim;
  for (int i = 0; i < args.vectors; i += kTileVectors) {
    const float* q = args.q + int64_t{i} * dim;
    const float* scales = memory.k_scales + group * kGroup;
    float* scores = memory.scores + int64_t{i} * kTile + group * kGroup;
    switch (Min(kTileVectors, args.vectors - i)) {
      case 4:
        ScoreVectors<Simd, 4>(q, dim, blocks, memory.k, scales, scores);
        break;
      case 3:
        ScoreVectors<Simd, 3>(q, dim, blocks, memory.k, scales, scores);
        break;
      case 2:
        ScoreVectors<Simd, 2>(q, dim, blocks, memory.k, scales, scores);
        break;
      default:
        ScoreVectors<Simd, 1>(q, dim, blocks, memory.k, scales, scores);
        break;
    }
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
  Vec sum[kBlock / Simd::kLanes];
  for (Vec& part : sum) part = Simd::Zero();
  for (int t = first; t < end; t += kBlock) {
    for (int h = 0; h < kBlock / Simd::kLanes; ++h) {
      const int at = t + h * Simd::kLanes;
      const Vec weight = Simd::Exp2(Simd::Sub(Simd::Load(scores + at), shift));
      const Vec valid = Simd::Select(weight, begin - at, end - at, Simd::Zero());
      sum[h] = Simd::Add(sum[h], valid);
      Simd::Store(scores + at, Simd::Mul(valid, Simd::Load(v_scales + at)));
    }
  }
  for (int h = 1; h < kBlock / Simd::kLanes; ++h) sum[0] = Simd::Add(sum[0], sum[h]);
  partial[1] = Simd::ReduceAdd(sum[0]);
}

// acc[m][0, 16 * kBlocks) += weights[m][t] * v[t], t ascending over [begin, end).
template <class Simd, int kVectors, int kBlocks>
void ValueTile(const float* weights, const float* v, int dim, int begin, int end, float* acc) {
  using Vec = typename Simd::Vec;
  constexpr int kParts = kBlocks * kBlock / Simd::kLanes;
  const int64_t stride = PartialFloats(dim);
  Vec sums[kVectors][kParts];
  for (int m = 0; m < kVectors; ++m) {
    for (int b = 0; b < kParts; ++b) sums[m][b] = Simd::Load(acc + m * stride + b * Simd::kLanes);
  }
  for (int t = begin; t < end; ++t) {
    Vec values[kParts];
    for (int b = 0; b < kParts; ++b) values[b] = Simd::Load(v + int64_t{t} * dim + b * Simd::kLanes);
    for (int m = 0; m < kVectors; ++m) {
      const Vec weight = Simd::Set1(weights[int64_t{m} * kTile + t]);
      for (int b = 0; b < kParts; ++b) sums[m][b] = Simd::Fma(weight, values[b], sums[m][b]);
    }
  }
  for (int m = 0; m < kVectors; ++m) {
    for (int b = 0; b < kParts; ++b) Simd::Store(acc + m * stride + b * Simd::kLanes, sums[m][b]);
  }
}

template <class Simd, int kVectors>
void ValueVectors(const float* weights, const float* v, int dim, int begin, int end, float* acc) {
  int d = 0;
  for (; d + Simd::kValueBlocks * kBlock <= dim; d += Simd::kValueBlocks * kBlock) {
    ValueTile<Simd, kVectors, Simd::kValueBlocks>(weights, v + d, dim, begin, end, acc + d);
  }
  for (; d < dim; d += kBlock) ValueTile<Simd, kVectors, 1>(weights, v + d, dim, begin, end, acc + d);
}

// Adds one expanded group, slots [begin, ends[i]) of it, to the accumulators of all vectors. Vectors of a register tile
// run together as far as all of them go; the rest of the longer ones follows alone.
template <class Simd>
void ValueGroup(const TileArgs& args, int group, int begin, const TileMemory& memory) {
  const int dim = args.layer->head_dim;
  for (int i = 0; i < args.vectors; i += kTileVectors) {
    const float* weights = memory.scores + int64_t{i} * kTile + group * kGroup;
    float* acc = args.partials + i * PartialFloats(dim) + kPartialHead;
    const int vectors = Min(kTileVectors, args.vectors - i);
    // Ends ascend: the first vector of the tile is the shortest.
    const int common = Max(begin, Min(kGroup, args.ends[i] - group * kGroup));
    switch (vectors) {
      case 4:
        ValueVectors<Simd, 4>(weights, memory.v, dim, begin, common, acc);
        break;
      case 3:
        ValueVectors<Simd, 3>(weights, memory.v, dim, begin, common, acc);
        break;
      case 2:
        ValueVectors<Simd, 2>(weights, memory.v, dim, begin, common, acc);
        break;
      default:
        ValueVectors<Simd, 1>(weights, memory.v, dim, begin, common, acc);
        break;
    }
    for (int m = 1; m < vectors; ++m) {
      const int end = Min(kGroup, args.ends[i + m] - group * kGroup);
      if (end <= common) continue;
      ValueVectors<Simd, 1>(weights + int64_t{m} * kTile, memory.v, dim, common, end, acc + m * PartialFloats(dim));
    }
  }
}

template <class Simd>
void FastTile(const TileArgs& args) {
  const TileMemory memory(args);
  const KvLayerView& layer = *args.layer;
  const int dim = layer.head_dim;
  const int last_end = args.ends[args.vectors - 1];
  const int blocks = (last_end + kBlock - 1) / kBlock;
  const int groups = (last_end + kGroup - 1) / kGroup;
  ExpandScales<Simd>(args, blocks, memory);
  for (int group = 0; group < groups; ++group) {
    const int first = group * kGroupBlocks;
    const int count = Min(kGroupBlocks, blocks - first);
    for (int b = 0; b < count; ++b) {
      ExpandK<Simd>(layer, FindBlock(args, first + b), memory.k + int64_t{b} * kBlock * dim);
    }
    ScoreGroup<Simd>(args, group, count, memory);
  }
  for (int i = 0; i < args.vectors; ++i) {
    float* partial = args.partials + i * PartialFloats(dim);
    Softmax<Simd>(args.begin, args.ends[i], memory.v_scales, memory.scores + int64_t{i} * kTile, partial);
    std::memset(partial + kPartialHead, 0, static_cast<size_t>(dim) * sizeof(float));
  }
  for (int group = 0; group < groups; ++group) {
    const int begin = Max(0, args.begin - group * kGroup);
    if (begin >= kGroup) continue;
    for (int t = begin / kBlock * kBlock; t < Min(kGroup, last_end - group * kGroup); t += kBlock) {
      const int rows = Min(kBlock, last_end - group * kGroup - t);
      ExpandV<Simd>(layer, FindBlock(args, group * kGroupBlocks + t / kBlock), rows, memory.v + int64_t{t} * dim);
    }
    ValueGroup<Simd>(args, group, begin, memory);
  }
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
