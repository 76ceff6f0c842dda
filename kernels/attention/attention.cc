#include "kernels/attention/attention.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/attention/attention_impl.h"

namespace sluice::kernels {
namespace {

using namespace attention_internal;  // NOLINT(google-build-using-namespace): this file implements
                                     // it

static_assert(kAttentionTile == kTile);

// Query vectors that share one expansion of a KV tile: enough to make the expansion cheap, few
// enough for their scores to stay in L2.
constexpr int kBlockVectors = 64;
constexpr int kMaxBlockRows = 32;

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

int GroupOf(const KvLayerView& layer, int heads) { return heads / layer.kv_heads; }

int BlockRows(int group) { return std::clamp(kBlockVectors / group, 1, kMaxBlockRows); }

// Where the parts of a call's scratch begin, in floats.
struct ScratchLayout {
  ScratchLayout(int head_dim, int group)
      : vectors(int64_t{group} * BlockRows(group)),
        state(vectors * head_dim),
        partial(state + vectors * PartialFloats(head_dim)),
        tile(partial + vectors * PartialFloats(head_dim)),
        ends(tile + TileScratchFloats(head_dim, static_cast<int>(vectors))),
        total(ends + vectors) {}

  int64_t vectors, state, partial, tile, ends, total;
};

// The parts themselves.
struct Scratch {
  Scratch(std::byte* memory, int head_dim, int group) : q(reinterpret_cast<float*>(memory)) {
    const ScratchLayout layout(head_dim, group);
    state = q + layout.state;
    partial = q + layout.partial;
    tile = q + layout.tile;
    ends = reinterpret_cast<int*>(q + layout.ends);
  }

  float* q;        // [vectors][head_dim]
  float* state;    // [vectors][PartialFloats]
  float* partial;  // [vectors][PartialFloats]
  float* tile;
  int* ends;  // [vectors]
};

void CheckShapes(const KvLayerView& layer, const AttentionRun& run) {
  SLUICE_CHECK(layer.head_dim > 0 && layer.head_dim % 16 == 0 && layer.head_dim <= kMaxHeadDim &&
               layer.page_tokens > 0 && layer.page_tokens % kKvBlockTokens == 0 &&
               layer.sink_rows >= 0 && layer.sink_rows < kTile &&
               (layer.sink_rows <= 1 || !IsCentred(layer.format)) && layer.kv_heads > 0 &&
               run.heads % layer.kv_heads == 0)
      << "head_dim " << layer.head_dim << ", page_tokens " << layer.page_tokens << ", sink_rows "
      << layer.sink_rows << ", heads " << run.heads << " over " << layer.kv_heads;
}

// Copies the query vectors of one row and KV head, scaled.
void ScaleQueries(const KvLayerView& layer, const AttentionRun& run, int row, int kv_head,
                  float scale, float* q) {
  const int64_t width = int64_t{GroupOf(layer, run.heads)} * layer.head_dim;
  const float* from = run.q + row * run.q_stride + kv_head * width;
  for (int64_t i = 0; i < width; ++i) q[i] = from[i] * scale;
}

// The result of a query vector from its merged state; values were stored less their centre.
void Finish(const PathKernels& kernels, const KvLayerView& layer, int kv_head, const float* state,
            float* out) {
  const int dim = layer.head_dim;
  kernels.finish(state, dim, out);
  if (layer.v_centre == nullptr) return;
  const float* centre = layer.v_centre + int64_t{kv_head} * dim;
  for (int d = 0; d < dim; ++d) out[d] += centre[d];
}

// One past the last slot that a row attends.
int64_t EndSlot(const KvLayerView& layer, const AttentionRun& run, int row) {
  return SlotOfPosition(run.first_position + row, layer.sink_rows) + 1;
}

// Fills `args` for one tile: vectors whose row ends before the tile are left out at the front.
// Returns the index of the first vector that takes part.
int PrepareTile(const KvLayerView& layer, const AttentionRun& run, int row_begin, int rows,
                int64_t tile, int* ends, TileArgs* args) {
  const int group = GroupOf(layer, run.heads);
  args->first_slot = tile * kTile;
  args->begin = tile == 0 ? layer.sink_rows : 0;
  args->second_term = tile == 0 && HasSecondTerm(layer);
  int first = 0;
  int vector = 0;
  for (int r = 0; r < rows; ++r) {
    const int64_t end = EndSlot(layer, run, row_begin + r) - args->first_slot;
    if (end <= args->begin) first += group;
    for (int g = 0; g < group; ++g)
      ends[vector++] = static_cast<int>(std::min<int64_t>(end, kTile));
  }
  args->ends = ends + first;
  args->vectors = vector - first;
  return first;
}

// The tile that follows `tile` of a KV head: the next one up to `end_slot`, else the first of the
// next KV head.
NextTile Following(int64_t tile, int kv_head, int kv_head_end, int64_t end_slot) {
  NextTile next = {kv_head, (tile + 1) * kTile, 0};
  if (next.first_slot >= end_slot) next = {kv_head + 1, 0, 0};
  if (next.kv_head < kv_head_end)
    next.slots = static_cast<int>(std::min<int64_t>(end_slot - next.first_slot, kTile));
  return next;
}

// All rows of a block against all their tiles, for one KV head; another one follows if it is below
// `kv_head_end`.
void AttendBlock(const PathKernels& kernels, const KvLayerView& layer, const AttentionRun& run,
                 int row_begin, int rows, int kv_head, int kv_head_end, const Scratch& scratch) {
  const int group = GroupOf(layer, run.heads);
  const int dim = layer.head_dim;
  for (int r = 0; r < rows; ++r) {
    ScaleQueries(layer, run, row_begin + r, kv_head, run.scale * kernels.q_scale,
                 scratch.q + int64_t{r} * group * dim);
  }
  TileArgs args = {};
  args.layer = &layer;
  args.pages = run.pages;
  args.kv_head = kv_head;
  args.scratch = scratch.tile;
  const int64_t end_slot = EndSlot(layer, run, row_begin + rows - 1);
  const int64_t tiles = (end_slot + kTile - 1) / kTile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int first = PrepareTile(layer, run, row_begin, rows, tile, scratch.ends, &args);
    args.q = scratch.q + int64_t{first} * dim;
    // Every vector takes part in tile 0, which therefore starts its state.
    args.partials = (tile == 0 ? scratch.state : scratch.partial) + first * PartialFloats(dim);
    args.next = Following(tile, kv_head, kv_head_end, end_slot);
    kernels.tile(args);
    for (int v = first; tile > 0 && v < first + args.vectors; ++v) {
      kernels.merge(scratch.state + v * PartialFloats(dim),
                    scratch.partial + v * PartialFloats(dim), dim);
    }
  }
  for (int r = 0; r < rows; ++r) {
    float* out = run.out + (row_begin + r) * run.out_stride + int64_t{kv_head} * group * dim;
    for (int g = 0; g < group; ++g) {
      Finish(kernels, layer, kv_head, scratch.state + (int64_t{r} * group + g) * PartialFloats(dim),
             out + int64_t{g} * dim);
    }
  }
}

}  // namespace

size_t AttentionScratchBytes(const KvLayerView& layer, int heads) {
  const ScratchLayout layout(layer.head_dim, GroupOf(layer, heads));
  return static_cast<size_t>(layout.total) * sizeof(float);
}

void Attention(IsaPath path, const KvLayerView& layer, const AttentionRun& run, int row_begin,
               int row_end, int kv_head_begin, int kv_head_end, std::byte* scratch) {
  CheckShapes(layer, run);
  const int group = GroupOf(layer, run.heads);
  const Scratch parts(scratch, layer.head_dim, group);
  const int block = BlockRows(group);
  for (int kv_head = kv_head_begin; kv_head < kv_head_end; ++kv_head) {
    for (int row = row_begin; row < row_end; row += block) {
      AttendBlock(KernelsOf(path), layer, run, row, std::min(block, row_end - row), kv_head,
                  kv_head_end, parts);
    }
  }
}

int AttentionTiles(const KvLayerView& layer, int64_t position) {
  return static_cast<int>((SlotOfPosition(position, layer.sink_rows) + kTile) / kTile);
}

size_t AttentionPartialFloats(const KvLayerView& layer, int heads) {
  return static_cast<size_t>(GroupOf(layer, heads) * PartialFloats(layer.head_dim));
}

void AttentionPartials(IsaPath path, const KvLayerView& layer, const AttentionRun& run, int row,
                       int kv_head, int tile_begin, int tile_end, float* partials,
                       std::byte* scratch) {
  CheckShapes(layer, run);
  const PathKernels& kernels = KernelsOf(path);
  const Scratch parts(scratch, layer.head_dim, GroupOf(layer, run.heads));
  ScaleQueries(layer, run, row, kv_head, run.scale * kernels.q_scale, parts.q);
  TileArgs args = {};
  args.layer = &layer;
  args.pages = run.pages;
  args.kv_head = kv_head;
  args.q = parts.q;
  args.scratch = parts.tile;
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    PrepareTile(layer, run, row, 1, tile, parts.ends, &args);
    args.partials = partials;
    args.next = {kv_head, 0, 0};
    if (tile + 1 < tile_end)
      args.next = Following(tile, kv_head, kv_head + 1, EndSlot(layer, run, row));
    kernels.tile(args);
    partials += AttentionPartialFloats(layer, run.heads);
  }
}

void AttentionMerge(IsaPath path, const KvLayerView& layer, const AttentionRun& run, int row,
                    int kv_head, const float* partials) {
  const PathKernels& kernels = KernelsOf(path);
  const int group = GroupOf(layer, run.heads);
  const int dim = layer.head_dim;
  const int tiles = AttentionTiles(layer, run.first_position + row);
  const int64_t stride = PartialFloats(dim);
  float state[kPartialHead + kMaxHeadDim];
  for (int g = 0; g < group; ++g) {
    std::memcpy(state, partials + g * stride, static_cast<size_t>(stride) * sizeof(float));
    for (int tile = 1; tile < tiles; ++tile) {
      kernels.merge(state, partials + (int64_t{tile} * group + g) * stride, dim);
    }
    Finish(kernels, layer, kv_head, state,
           run.out + row * run.out_stride + (int64_t{kv_head} * group + g) * dim);
  }
}

}  // namespace sluice::kernels
