// The fast latent attention, written once for any vector width. Included only by the files of one
// instruction set, each with its own Simd: everything here has internal linkage, so that no AVX-512
// copy can reach a processor without it.
//
// Arithmetic, the same for one vector and for many: a score is one chain of fused multiply-adds per
// lane over ascending elements, then one fixed tree over the lanes; weighted latents are one chain
// over ascending positions; sums of weights go lane by lane and end in the same tree. How many
// vectors and positions a register tile holds changes none of these chains. Pages are expanded to
// f32 first, to exactly what LoadMlaRow gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention/partial_fast.h"
#include "kernels/fp/fp.h"
#include "kernels/mla/mla_impl.h"
#include "kernels/unroll.h"

namespace sluice::kernels::mla_internal {
namespace {

inline int Min(int a, int b) { return a < b ? a : b; }
inline int Max(int a, int b) { return a > b ? a : b; }

template <typename T>
T ReadAt(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class Simd>
void ExpandE4m3(const std::byte* codes, int n, float scale, float* to) {
  const typename Simd::Vec factor = Simd::Set1(scale);
  for (int i = 0; i < n; i += Simd::kLanes) {
    Simd::Store(to + i, Simd::Mul(Simd::LoadE4m3(codes + i), factor));
  }
}

template <class Simd>
void ExpandInt8(const std::byte* codes, int n, float scale, float* to) {
  const typename Simd::Vec factor = Simd::Set1(scale);
  for (int i = 0; i < n; i += Simd::kLanes) {
    Simd::Store(to + i, Simd::Mul(Simd::LoadInt8(codes + i), factor));
  }
}

template <class Simd>
void ExpandBf16(const std::byte* codes, int n, float* to) {
  for (int i = 0; i < n; i += Simd::kLanes) Simd::Store(to + i, Simd::LoadBf16(codes + i * 2));
}

// One row of a page as float32 [latent + rope].
template <class Simd>
void ExpandRow(const MlaLayerView& layer, const std::byte* page, int64_t row, float* to) {
  const int latent = layer.latent;
  const int rope = layer.rope;
  const std::byte* const latent_at = page + layer.latent_offset;
  const std::byte* const rope_at = page + layer.rope_offset;
  if (layer.format == KvFormat::kMlaFp8) {
    const auto scale = static_cast<uint8_t>(page[layer.latent_scale_offset + row]);
    ExpandE4m3<Simd>(latent_at + row * latent, latent, Ue8m0ToFloat(scale), to);
    const float rope_scale =
        Bf16ToFloat(ReadAt<uint16_t>(page + layer.rope_scale_offset + row * 2));
    ExpandInt8<Simd>(rope_at + row * rope, rope, rope_scale, to + latent);
  } else if (layer.format == KvFormat::kMlaFp8Tiles) {
    const std::byte* const codes = latent_at + row * MlaTilesRowBytes(latent, rope);
    const std::byte* scales = codes + latent;
    for (int d = 0; d < latent; d += kMlaScaleTile, scales += 4) {
      ExpandE4m3<Simd>(codes + d, Min(kMlaScaleTile, latent - d), ReadAt<float>(scales), to + d);
    }
    ExpandBf16<Simd>(scales, rope, to + latent);
  } else if (layer.format == KvFormat::kBf16) {
    ExpandBf16<Simd>(latent_at + row * latent * 2, latent, to);
    ExpandBf16<Simd>(rope_at + row * rope * 2, rope, to + latent);
  } else {
    std::memcpy(to, latent_at + row * latent * 4, static_cast<size_t>(latent) * 4);
    std::memcpy(to + latent, rope_at + row * rope * 4, static_cast<size_t>(rope) * 4);
  }
}

// Rows [begin, begin + count) of the tile; with their rope part for scores, without for values.
template <class Simd>
void ExpandBlock(const TileArgs& args, int begin, int count, float* rows) {
  const MlaLayerView& layer = *args.layer;
  for (int t = 0; t < count; ++t) {
    const int64_t position = PositionOf(args, begin + t);
    ExpandRow<Simd>(layer, args.pages[position / layer.page_tokens], position % layer.page_tokens,
                    rows + int64_t{t} * layer.width());
  }
}

// Scores of kVectors query vectors against kRows rows.
template <class Simd, int kVectors, int kRows>
void ScoreTile(const float* q, const float* rows, int width, float* scores) {
  using Vec = typename Simd::Vec;
  Vec acc[kVectors][kRows];
  SLUICE_UNROLL
  for (int m = 0; m < kVectors; ++m) {
    SLUICE_UNROLL
    for (int t = 0; t < kRows; ++t) acc[m][t] = Simd::Zero();
  }
  for (int d = 0; d < width; d += Simd::kLanes) {
    Vec keys[kRows];
    SLUICE_UNROLL
    for (int t = 0; t < kRows; ++t) keys[t] = Simd::Load(rows + int64_t{t} * width + d);
    SLUICE_UNROLL
    for (int m = 0; m < kVectors; ++m) {
      const Vec query = Simd::Load(q + int64_t{m} * width + d);
      SLUICE_UNROLL
      for (int t = 0; t < kRows; ++t) acc[m][t] = Simd::Fma(query, keys[t], acc[m][t]);
    }
  }
  SLUICE_UNROLL
  for (int m = 0; m < kVectors; ++m) {
    SLUICE_UNROLL
    for (int t = 0; t < kRows; ++t) scores[int64_t{m} * kTile + t] = Simd::ReduceAdd(acc[m][t]);
  }
}

// Scores of `vectors` query vectors against the `count` expanded rows at `begin` of the tile.
template <class Simd>
void ScoreBlock(const float* queries, int vectors, int width, int begin, int count,
                const float* rows, float* scores) {
  for (int i = 0; i < vectors; i += kTileVectors) {
    WithVectors(Min(kTileVectors, vectors - i), [&]<int kVectors>() {
      const float* const q = queries + int64_t{i} * width;
      float* const to = scores + int64_t{i} * kTile + begin;
      int t = 0;
      for (; t + Simd::kScoreRows <= count; t += Simd::kScoreRows) {
        ScoreTile<Simd, kVectors, Simd::kScoreRows>(q, rows + int64_t{t} * width, width, to + t);
      }
      for (; t < count; ++t) {
        ScoreTile<Simd, kVectors, 1>(q, rows + int64_t{t} * width, width, to + t);
      }
    });
  }
}

// Turns the first `end` scores of one vector into weights exp2(score - maximum).
template <class Simd>
void Softmax(int end, float* scores, float* partial) {
  using Vec = typename Simd::Vec;
  Vec max = Simd::Set1(-__builtin_inff());
  for (int t = 0; t < end; t += Simd::kLanes) {
    max = Simd::Max(max, Simd::First(Simd::Load(scores + t), end - t, -__builtin_inff()));
  }
  partial[0] = Simd::ReduceMax(max);
  const Vec shift = Simd::Set1(partial[0]);
  Vec sum = Simd::Zero();
  for (int t = 0; t < end; t += Simd::kLanes) {
    const Vec weight = Simd::Exp2(Simd::Sub(Simd::Load(scores + t), shift));
    sum = Simd::Add(sum, Simd::First(weight, end - t, 0.0f));
    Simd::Store(scores + t, weight);
  }
  partial[1] = Simd::ReduceAdd(sum);
}

// acc[m][0, kParts * lanes) += weights[m][t] * rows[t][d...], t ascending over [begin, end).
template <class Simd, int kVectors, int kParts>
void ValueTile(const float* weights, const float* rows, int width, int64_t stride, int begin,
               int end, float* acc) {
  using Vec = typename Simd::Vec;
  Vec sums[kVectors][kParts];
  SLUICE_UNROLL
  for (int m = 0; m < kVectors; ++m) {
    SLUICE_UNROLL
    for (int i = 0; i < kParts; ++i) sums[m][i] = Simd::Load(acc + m * stride + i * Simd::kLanes);
  }
  for (int t = begin; t < end; ++t) {
    Vec values[kParts];
    SLUICE_UNROLL
    for (int i = 0; i < kParts; ++i) {
      values[i] = Simd::Load(rows + int64_t{t} * width + i * Simd::kLanes);
    }
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

template <class Simd, int kVectors>
void ValueVectors(const MlaLayerView& layer, const float* weights, const float* rows, int begin,
                  int end, float* acc) {
  constexpr int kStep = Simd::kValueParts * Simd::kLanes;
  const int64_t stride = PartialFloats(layer.latent);
  int d = 0;
  for (; d + kStep <= layer.latent; d += kStep) {
    ValueTile<Simd, kVectors, Simd::kValueParts>(weights, rows + d, layer.width(), stride, begin,
                                                 end, acc + d);
  }
  for (; d < layer.latent; d += Simd::kLanes) {
    ValueTile<Simd, kVectors, 1>(weights, rows + d, layer.width(), stride, begin, end, acc + d);
  }
}

// Adds the block's rows to the sums of all vectors, as far as each goes. Vectors of a register tile
// run together up to the shortest one's end; the rest of the longer ones follows alone.
template <class Simd>
void ValueBlock(const TileArgs& args, int first, int count, const float* rows,
                const float* scores) {
  const MlaLayerView& layer = *args.layer;
  const int64_t stride = PartialFloats(layer.latent);
  for (int i = 0; i < args.vectors; i += kTileVectors) {
    const float* const weights = scores + int64_t{i} * kTile + first;
    float* const acc = args.partials + i * stride + kPartialHead;
    const int vectors = Min(kTileVectors, args.vectors - i);
    // Ends ascend: the first vector of the tile is the shortest.
    const int common = Max(0, Min(count, args.ends[i] - first));
    WithVectors(vectors, [&]<int kVectors>() {
      ValueVectors<Simd, kVectors>(layer, weights, rows, 0, common, acc);
    });
    for (int m = 1; m < vectors; ++m) {
      const int end = Min(count, args.ends[i + m] - first);
      if (end <= common) continue;
      ValueVectors<Simd, 1>(layer, weights + int64_t{m} * kTile, rows, common, end,
                            acc + m * stride);
    }
  }
}

template <class Simd>
void FastTile(const TileArgs& args) {
  const MlaLayerView& layer = *args.layer;
  float* const rows = args.scratch;
  float* const scores = rows + int64_t{kBlock} * layer.width();
  const int last_end = args.ends[args.vectors - 1];
  for (int first = 0; first < last_end; first += kBlock) {
    const int count = Min(kBlock, last_end - first);
    ExpandBlock<Simd>(args, first, count, rows);
    ScoreBlock<Simd>(args.q, args.vectors, layer.width(), first, count, rows, scores);
  }
  for (int i = 0; i < args.vectors; ++i) {
    float* const partial = args.partials + i * PartialFloats(layer.latent);
    Softmax<Simd>(args.ends[i], scores + int64_t{i} * kTile, partial);
    std::memset(partial + kPartialHead, 0, static_cast<size_t>(layer.latent) * sizeof(float));
  }
  for (int first = 0; first < last_end; first += kBlock) {
    const int count = Min(kBlock, last_end - first);
    ExpandBlock<Simd>(args, first, count, rows);
    ValueBlock<Simd>(args, first, count, rows, scores);
  }
}

template <class Simd>
void ExpandIndexKey(const MlaLayerView& layer, const std::byte* page, int64_t row, float* to) {
  const std::byte* const at = page + layer.index_offset;
  if (layer.format == KvFormat::kF32) {
    std::memcpy(to, at + row * layer.index * 4, static_cast<size_t>(layer.index) * 4);
    return;
  }
  ExpandE4m3<Simd>(at + row * layer.index, layer.index,
                   ReadAt<float>(page + layer.index_scale_offset + row * 4), to);
}

template <class Simd>
void FastIndex(const IndexArgs& args) {
  const MlaLayerView& layer = *args.layer;
  float* const keys = args.scratch;
  float* const products = keys + int64_t{kBlock} * layer.index;  // [heads][kTile]
  for (int64_t first = args.begin; first < args.end; first += kBlock) {
    const int count = args.end - first < kBlock ? static_cast<int>(args.end - first) : kBlock;
    for (int t = 0; t < count; ++t) {
      const int64_t position = first + t;
      ExpandIndexKey<Simd>(layer, args.pages[position / layer.page_tokens],
                           position % layer.page_tokens, keys + int64_t{t} * layer.index);
    }
    ScoreBlock<Simd>(args.q, args.heads, layer.index, 0, count, keys, products);
    for (int t = 0; t < count; ++t) {
      float score = 0;
      for (int h = 0; h < args.heads; ++h) {
        const float product = products[int64_t{h} * kTile + t];
        score += args.weights[h] * (product > 0 ? product : 0);
      }
      args.scores[first + t] = score;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::mla_internal
