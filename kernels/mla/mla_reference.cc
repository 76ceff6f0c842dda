// Plain float32 over the dequantised rows: the definition that the fast paths are tested against.
#include <cmath>

#include "kernels/kv_store/mla_store.h"
#include "kernels/mla/mla_impl.h"

namespace sluice::kernels::mla_internal {
namespace {

void LoadRow(const TileArgs& args, int t, float* row) {
  const int64_t position = PositionOf(args, t);
  const int page_tokens = args.layer->page_tokens;
  LoadMlaRow(*args.layer, args.pages[position / page_tokens],
             static_cast<int>(position % page_tokens), row);
}

void Tile(const TileArgs& args) {
  const int width = args.layer->width();
  const int latent = args.layer->latent;
  float* const row = args.scratch;
  float* const scores = args.scratch + int64_t{kBlock} * width;
  const int last_end = args.ends[args.vectors - 1];
  for (int i = 0; i < args.vectors; ++i) {
    float* const partial = args.partials + i * PartialFloats(latent);
    partial[0] = -INFINITY;
    for (int d = 1; d < kPartialHead + latent; ++d) partial[d] = 0;
  }
  for (int t = 0; t < last_end; ++t) {
    LoadRow(args, t, row);
    for (int i = 0; i < args.vectors; ++i) {
      if (t >= args.ends[i]) continue;
      const float* const q = args.q + int64_t{i} * width;
      float* const max = args.partials + i * PartialFloats(latent);
      float dot = 0;
      for (int d = 0; d < width; ++d) dot += q[d] * row[d];
      scores[int64_t{i} * kTile + t] = dot;
      *max = dot > *max ? dot : *max;
    }
  }
  for (int t = 0; t < last_end; ++t) {
    LoadRow(args, t, row);
    for (int i = 0; i < args.vectors; ++i) {
      if (t >= args.ends[i]) continue;
      float* const partial = args.partials + i * PartialFloats(latent);
      const float p = std::exp(scores[int64_t{i} * kTile + t] - partial[0]);
      partial[1] += p;
      for (int d = 0; d < latent; ++d) partial[kPartialHead + d] += p * row[d];
    }
  }
}

void Index(const IndexArgs& args) {
  const MlaLayerView& layer = *args.layer;
  float* const key = args.scratch;
  for (int64_t p = args.begin; p < args.end; ++p) {
    LoadMlaIndex(layer, args.pages[p / layer.page_tokens], static_cast<int>(p % layer.page_tokens),
                 key);
    float score = 0;
    for (int h = 0; h < args.heads; ++h) {
      const float* const q = args.q + int64_t{h} * layer.index;
      float dot = 0;
      for (int d = 0; d < layer.index; ++d) dot += q[d] * key[d];
      score += args.weights[h] * (dot > 0 ? dot : 0);
    }
    args.scores[p] = score;
  }
}

}  // namespace

const PathKernels kReference = {1.0f, Tile, ReferenceMerge, ReferenceFinish, Index};

}  // namespace sluice::kernels::mla_internal
