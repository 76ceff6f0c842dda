// Private to mla: what a path provides, and the memory layout that the driver and the paths share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params.h"

namespace sluice::kernels::mla_internal {

constexpr int kTile = 256;        // positions of a tile
constexpr int kPartialHead = 16;  // floats before a partial's latents: [0] maximum, [1] sum
// Positions expanded to f32 at a time: with 576 elements a row they stay in L1.
constexpr int kBlock = 16;

// One query vector's result over some tiles: [maximum of its scores, sum of exp(score - maximum),
// .., acc[latent]], acc = sum of exp(score - maximum) * latent.
static inline int64_t PartialFloats(int latent) { return kPartialHead + latent; }

// One tile against several query vectors.
struct TileArgs {
  const MlaLayerView* layer;
  const std::byte* const* pages;
  int64_t first;    // position of the tile's first row: a multiple of kTile
  const int* ends;  // [vectors] each vector attends [0, end) of the tile; ascending, 0 < end
  int vectors;
  const float* q;   // [vectors][latent + rope], scaled by scale * q_scale
  float* partials;  // [vectors][PartialFloats]
  float* scratch;   // TileScratchFloats(), 64-byte aligned
};

// One block expanded to f32 and the scores of all vectors.
static inline int64_t TileScratchFloats(int width, int max_vectors) {
  return int64_t{kBlock} * width + int64_t{max_vectors} * kTile;
}

struct PathKernels {
  // Logarithms to base 2 let exp be a shift and a polynomial: such paths want q scaled by log2(e).
  float q_scale;
  void (*tile)(const TileArgs& args);
  // state = state merged with the next partial, in the order of the tiles.
  void (*merge)(float* state, const float* partial, int latent);
  // out = acc / sum.
  void (*finish)(const float* state, int latent, float* out);
};

extern const PathKernels kReference;
extern const PathKernels kAvx2;
extern const PathKernels kAvx512;

}  // namespace sluice::kernels::mla_internal
