// Private to mla: what a path provides, and the memory layout that the driver and the paths share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/partial.h"
#include "kernels/params.h"

namespace sluice::kernels::mla_internal {

constexpr int kTile = 256;  // positions of a tile
// Positions expanded to f32 at a time: with 576 elements a row they stay in L1.
constexpr int kBlock = 16;

// One tile against several query vectors.
struct TileArgs {
  const MlaLayerView* layer;
  const std::byte* const* pages;
  int64_t first;  // of the tile, a multiple of kTile: a position, or with picks an index of them
  const int32_t* picks;  // [..] positions that are attended; null: all of them, in order
  const int* ends;       // [vectors] each vector attends [0, end) of the tile; ascending, 0 < end
  int vectors;
  const float* q;   // [vectors][latent + rope], scaled by scale * q_scale
  float* partials;  // [vectors][PartialFloats]
  float* scratch;   // TileScratchFloats(), 64-byte aligned
};

// One block expanded to f32 and the scores of all vectors.
static inline int64_t TileScratchFloats(int width, int max_vectors) {
  return int64_t{kBlock} * width + int64_t{max_vectors} * kTile;
}

// The position of row t of a tile.
static inline int64_t PositionOf(const TileArgs& args, int t) {
  return args.picks != nullptr ? args.picks[args.first + t] : args.first + t;
}

// Scores of the index keys of positions [begin, end) for one query.
struct IndexArgs {
  const MlaLayerView* layer;
  const std::byte* const* pages;
  const float* q;        // [heads][index]
  const float* weights;  // [heads]
  int heads;
  int64_t begin;
  int64_t end;
  float* scores;   // of position 0 first
  float* scratch;  // IndexScratchFloats(), 64-byte aligned
};

// One block of keys expanded to f32 and the products of all heads.
static inline int64_t IndexScratchFloats(int index, int heads) {
  return int64_t{kBlock} * index + int64_t{heads} * kTile;
}

struct PathKernels {
  // Logarithms to base 2 let exp be a shift and a polynomial: such paths want q scaled by log2(e).
  float q_scale;
  void (*tile)(const TileArgs& args);
  // state = state merged with the next partial, in the order of the tiles.
  void (*merge)(float* state, const float* partial, int latent);
  // out = acc / sum.
  void (*finish)(const float* state, int latent, float* out);
  // scores[p] = sum_h weights[h] * max(q[h] . key[p], 0), heads ascending.
  void (*index)(const IndexArgs& args);
};

extern const PathKernels kReference;
extern const PathKernels kAvx2;
extern const PathKernels kAvx512;

}  // namespace sluice::kernels::mla_internal
