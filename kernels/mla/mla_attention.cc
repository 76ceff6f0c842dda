#include "kernels/mla/mla_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/mla/mla_impl.h"

namespace sluice::kernels {
namespace {

using namespace mla_internal;  // NOLINT(google-build-using-namespace): this file implements it

static_assert(kMlaTile == kTile);

// Query vectors that share one expansion of a tile: enough to make the expansion cheap, few enough
// for their sums to stay in L2.
constexpr int kBlockVectors = 64;

const PathKernels& KernelsOf(IsaPath path) {
  switch (path) {
    case IsaPath::kAvx512:
      return kAvx512;
    case IsaPath::kAvx2:
      return kAvx2;
    case IsaPath::kReference:
      break;
  }
  return kReference;
}

// The parts of a call's scratch.
struct Scratch {
  Scratch(std::byte* memory, const MlaLayerView& layer)
      : q(reinterpret_cast<float*>(memory)),
        state(q + int64_t{kBlockVectors} * layer.width()),
        partial(state + kBlockVectors * PartialFloats(layer.latent)),
        tile(partial + kBlockVectors * PartialFloats(layer.latent)),
        ends(reinterpret_cast<int*>(tile + TileScratchFloats(layer.width(), kBlockVectors))) {}

  float* q;        // [kBlockVectors][width]
  float* state;    // [kBlockVectors][PartialFloats]
  float* partial;  // [kBlockVectors][PartialFloats]
  float* tile;
  int* ends;  // [kBlockVectors]
};

// Rows [row_begin, row_end) x heads [head_begin, head_end), row by row: at most kBlockVectors.
struct Block {
  int row_begin;
  int row_end;
  int head_begin;
  int head_end;

  int heads() const { return head_end - head_begin; }
  int vectors() const { return (row_end - row_begin) * heads(); }
};

void CheckShapes(const MlaLayerView& layer) {
  SLUICE_CHECK(layer.latent > 0 && layer.latent % 16 == 0 && layer.latent <= kMaxMlaLatent &&
               layer.rope > 0 && layer.rope % 16 == 0 && layer.page_tokens > 0 &&
               layer.page_tokens % kBlock == 0)
      << "latent " << layer.latent << ", rope " << layer.rope << ", page_tokens "
      << layer.page_tokens;
}

void ScaleQueries(const MlaLayerView& layer, const MlaRun& run, const Block& block, float scale,
                  float* q) {
  const int64_t width = layer.width();
  for (int row = block.row_begin; row < block.row_end; ++row) {
    const float* const from = run.q + row * run.q_stride + block.head_begin * width;
    for (int64_t i = 0; i < block.heads() * width; ++i) *q++ = from[i] * scale;
  }
}

// How many rows of the cache a row attends.
int64_t AttendedOf(const MlaRun& run, int row) {
  return run.picks != nullptr ? run.pick_counts[row] : run.first_position + row + 1;
}

// Fills `args` for one tile: vectors whose row ends before the tile are left out at the front.
// Returns the index of the first vector that takes part.
int PrepareTile(const MlaRun& run, const Block& block, int64_t tile, int* ends, TileArgs* args) {
  args->first = tile * kTile;
  int first = 0;
  int vector = 0;
  for (int row = block.row_begin; row < block.row_end; ++row) {
    const int64_t end = AttendedOf(run, row) - args->first;
    if (end <= 0) first += block.heads();
    for (int h = 0; h < block.heads(); ++h) {
      ends[vector++] = static_cast<int>(std::min<int64_t>(end, kTile));
    }
  }
  args->ends = ends + first;
  args->vectors = vector - first;
  return first;
}

TileArgs ArgsOf(const MlaLayerView& layer, const MlaRun& run, const Scratch& scratch) {
  TileArgs args = {};
  args.layer = &layer;
  args.pages = run.pages;
  args.scratch = scratch.tile;
  return args;
}

void AttendBlock(const PathKernels& kernels, const MlaLayerView& layer, const MlaRun& run,
                 const Block& block, const Scratch& scratch) {
  const int64_t partial_floats = PartialFloats(layer.latent);
  ScaleQueries(layer, run, block, run.scale * kernels.q_scale, scratch.q);
  TileArgs args = ArgsOf(layer, run, scratch);
  const int tiles = MlaTiles(AttendedOf(run, block.row_end - 1));
  if (run.picks != nullptr) args.picks = run.picks + block.row_begin * run.pick_stride;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = PrepareTile(run, block, tile, scratch.ends, &args);
    args.q = scratch.q + int64_t{first} * layer.width();
    // Every vector takes part in tile 0, which therefore starts its state.
    args.partials = (tile == 0 ? scratch.state : scratch.partial) + first * partial_floats;
    kernels.tile(args);
    for (int v = first; tile > 0 && v < block.vectors(); ++v) {
      kernels.merge(scratch.state + v * partial_floats, scratch.partial + v * partial_floats,
                    layer.latent);
    }
  }
  const float* state = scratch.state;
  for (int row = block.row_begin; row < block.row_end; ++row) {
    float* out = run.out + row * run.out_stride + int64_t{block.head_begin} * layer.latent;
    for (int h = 0; h < block.heads(); ++h, state += partial_floats, out += layer.latent) {
      kernels.finish(state, layer.latent, out);
    }
  }
}

}  // namespace

size_t MlaScratchBytes(const MlaLayerView& layer) {
  const int64_t floats = kBlockVectors * (layer.width() + 2 * PartialFloats(layer.latent) + 1) +
                         TileScratchFloats(layer.width(), kBlockVectors);
  return static_cast<size_t>(floats) * sizeof(float);
}

void MlaAttention(IsaPath path, const MlaLayerView& layer, const MlaRun& run, int row_begin,
                  int row_end, int head_begin, int head_end, std::byte* scratch) {
  CheckShapes(layer);
  const Scratch parts(scratch, layer);
  for (int head = head_begin; head < head_end; head += kBlockVectors) {
    const int heads_end = std::min(head + kBlockVectors, head_end);
    // Rows with picks of their own share no tile.
    const int rows = run.picks != nullptr ? 1 : kBlockVectors / (heads_end - head);
    for (int row = row_begin; row < row_end; row += rows) {
      AttendBlock(KernelsOf(path), layer, run,
                  {row, std::min(row + rows, row_end), head, heads_end}, parts);
    }
  }
}

int MlaTiles(int64_t attended) { return static_cast<int>((attended + kTile - 1) / kTile); }

size_t MlaPartialFloats(const MlaLayerView& layer) {
  return static_cast<size_t>(PartialFloats(layer.latent));
}

void MlaPartials(IsaPath path, const MlaLayerView& layer, const MlaRun& run, int row,
                 int head_begin, int head_end, int tile_begin, int tile_end, float* partials,
                 std::byte* scratch) {
  CheckShapes(layer);
  const PathKernels& kernels = KernelsOf(path);
  const Scratch parts(scratch, layer);
  const int64_t tile_floats = (head_end - head_begin) * PartialFloats(layer.latent);
  for (int head = head_begin; head < head_end; head += kBlockVectors) {
    const Block block = {row, row + 1, head, std::min(head + kBlockVectors, head_end)};
    ScaleQueries(layer, run, block, run.scale * kernels.q_scale, parts.q);
    TileArgs args = ArgsOf(layer, run, parts);
    if (run.picks != nullptr) args.picks = run.picks + row * run.pick_stride;
    args.q = parts.q;
    for (int tile = tile_begin; tile < tile_end; ++tile) {
      PrepareTile(run, block, tile, parts.ends, &args);
      args.partials = partials + (tile - tile_begin) * tile_floats +
                      (head - head_begin) * PartialFloats(layer.latent);
      kernels.tile(args);
    }
  }
}

void MlaMerge(IsaPath path, const MlaLayerView& layer, const MlaRun& run, int row, int head_begin,
              int head_end, const float* partials) {
  const PathKernels& kernels = KernelsOf(path);
  const int tiles = MlaTiles(AttendedOf(run, row));
  const int64_t stride = PartialFloats(layer.latent);
  const int64_t tile_floats = (head_end - head_begin) * stride;
  float state[kPartialHead + kMaxMlaLatent];
  for (int head = head_begin; head < head_end; ++head) {
    const float* const first = partials + (head - head_begin) * stride;
    std::memcpy(state, first, static_cast<size_t>(stride) * sizeof(float));
    for (int tile = 1; tile < tiles; ++tile) {
      kernels.merge(state, first + tile * tile_floats, layer.latent);
    }
    kernels.finish(state, layer.latent,
                   run.out + row * run.out_stride + int64_t{head} * layer.latent);
  }
}

size_t MlaIndexScratchBytes(const MlaLayerView& layer, int heads) {
  return static_cast<size_t>(IndexScratchFloats(layer.index, heads)) * sizeof(float);
}

namespace {

// The positions with the largest scores first, in no order, equal ones as torch.topk leaves them on
// a CPU: it selects with the standard library, by score alone, so what becomes of equals follows
// from where the algorithm puts its pivots.
void SelectAsTorch(const float* scores, int topk, int64_t length, int32_t* order) {
  const auto larger = [&](int32_t a, int32_t b) { return scores[a] > scores[b]; };
  if (int64_t{topk} * 64 <= length) {
    std::partial_sort(order, order + topk, order + length, larger);
  } else {
    std::nth_element(order, order + topk - 1, order + length, larger);
  }
}

}  // namespace

void MlaIndexScores(IsaPath path, const MlaLayerView& layer, const MlaIndexQuery& query,
                    const std::byte* const* pages, int64_t begin, int64_t end, float* scores,
                    std::byte* scratch) {
  SLUICE_CHECK(layer.index > 0 && layer.index % 16 == 0) << "index " << layer.index;
  KernelsOf(path).index({&layer, pages, query.q, query.weights, query.heads, begin, end, scores,
                         reinterpret_cast<float*>(scratch)});
}

int MlaPick(const MlaPickOptions& options, int64_t positions, float* scores, int32_t* order,
            int32_t* picks) {
  const int topk = options.topk;
  SLUICE_CHECK(topk > 0) << "topk " << topk;
  if (positions <= topk) {
    for (int64_t i = 0; i < positions; ++i) picks[i] = static_cast<int32_t>(i);
    return static_cast<int>(positions);
  }
  const int64_t length = std::max(positions, options.torch_length);
  std::fill(scores + positions, scores + length, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < length; ++i) {
    order[i] = static_cast<int32_t>(i);
    if (std::isnan(scores[i])) scores[i] = -std::numeric_limits<float>::infinity();
  }
  if (options.torch_length > 0) {
    SelectAsTorch(scores, topk, length, order);
  } else {
    // A strict order of all positions, so the set does not depend on the algorithm.
    std::nth_element(order, order + topk, order + length, [&](int32_t a, int32_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
  }
  std::copy_n(order, topk, picks);
  std::sort(picks, picks + topk);
  return topk;
}

}  // namespace sluice::kernels
