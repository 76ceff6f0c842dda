// Private to attention: what a path provides, and the memory layout that the driver and the paths
// share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/partial.h"
#include "kernels/params.h"

namespace sluice::kernels::attention_internal {

constexpr int kTile = 256;  // slots of a KV tile
constexpr int kMaxHeadDim = 256;

// A tile that will be wanted next, for prefetching: its first `slots` slots hold tokens of the run
// (0 = nothing follows).
struct NextTile {
  int kv_head;
  int64_t first_slot;
  int slots;
};

// One tile of one KV head against several query vectors.
struct TileArgs {
  const KvLayerView* layer;
  const std::byte* const* pages;
  int kv_head;
  int64_t first_slot;  // of the tile: a multiple of kTile
  int begin;  // first slot of the tile that holds a token (0, or more in tile 0 of a layout with
              // sink rows)
  bool second_term;  // slot 0 of the tile holds the second term of the token in slot 1 = begin
  const int* ends;   // [vectors] each vector attends slots [begin, end) of the tile; ascending,
                     // begin < end <= kTile
  int vectors;
  const float* q;   // [vectors][head_dim], scaled by scale * q_scale
  float* partials;  // [vectors][PartialFloats]
  float* scratch;   // TileScratchFloats(), 64-byte aligned
  NextTile next;
};

// Scores of all vectors, one tile's K and V in f32 and their scales: the most that any path uses.
static inline int64_t TileScratchFloats(int head_dim, int max_vectors) {
  return int64_t{max_vectors} * kTile + 2 * int64_t{kTile} * head_dim + 2 * kTile;
}

struct PathKernels {
  // Logarithms to base 2 let exp be a shift and a polynomial: such paths want q scaled by log2(e).
  float q_scale;
  void (*tile)(const TileArgs& args);
  // state = state merged with the next partial, in the order of the tiles.
  void (*merge)(float* state, const float* partial, int head_dim);
  // out = acc / sum.
  void (*finish)(const float* state, int head_dim, float* out);
};

extern const PathKernels kReference;
extern const PathKernels kAvx2;
extern const PathKernels kAvx512;

}  // namespace sluice::kernels::attention_internal
