// Causal multi-head latent attention over a paged cache, in its absorbed form: all heads attend the
// same row per token, whose first part is the value too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/params.h"

namespace sluice::kernels {

// Positions per tile. A query's result is its tiles' (max, sum, weighted latents) merged in
// ascending order. Tiles begin at absolute multiples, so a row's bits do not depend on how rows and
// heads were grouped into calls.
inline constexpr int kMlaTile = 256;
inline constexpr int kMaxMlaLatent = 1024;

// A run of consecutive tokens of one sequence. Row r is the token at position first_position + r;
// it attends positions 0 .. first_position + r, whose rows are in the pages already, its own
// included.
struct MlaRun {
  // [rows][heads][latent + rope] f32: the query of the latent (W_K^T q), then the rotated one.
  const float* q = nullptr;
  float* out = nullptr;  // [rows][heads][latent] f32
  int64_t q_stride = 0;  // floats between rows
  int64_t out_stride = 0;
  int heads = 0;
  int64_t first_position = 0;
  // Block table: pages[i] is the start of the page that holds positions [i * page_tokens, ...).
  const std::byte* const* pages = nullptr;
  float scale = 0;  // multiplies q.k
  // Attention over picked positions: of row r the positions picks[r * pick_stride ..], ascending
  // and none later than the row's own, pick_counts[r] of them (at least 1). Null: all positions.
  const int32_t* picks = nullptr;
  const int32_t* pick_counts = nullptr;
  int64_t pick_stride = 0;
};

// Bytes of scratch that one call of MlaAttention or MlaPartials needs (64-byte aligned).
size_t MlaScratchBytes(const MlaLayerView& layer);

// out[r][h] = sum_t p_t latent_t, p = softmax(scale * q[r][h] . [latent_t | rope_t]) for rows
// [row_begin, row_end) and heads [head_begin, head_end). Within a path the bits of out[r][h] depend
// only on q[r][h], the sequence's pages and the position. Threads: calls that write different
// (row, head) may run at once, each with its own `scratch`. Cost: 2 * (2 * latent + rope) flops per
// position, row and head; a tile is read and expanded twice per 64 (row, head).
void MlaAttention(IsaPath path, const MlaLayerView& layer, const MlaRun& run, int row_begin,
                  int row_end, int head_begin, int head_end, std::byte* scratch);

// What the positions of a sequence score for one row: score = sum_h weights[h] * max(q[h] . key, 0)
// over the layer's index keys.
struct MlaIndexQuery {
  const float* q = nullptr;        // [heads][index]
  const float* weights = nullptr;  // [heads]
  int heads = 0;
};
size_t MlaIndexScratchBytes(const MlaLayerView& layer, int heads);
// Writes scores[begin] to scores[end - 1]. Within a path a score depends only on q, weights and the
// key. Threads: ranges may be scored at once, each with its own `scratch`. Cost: 2 * heads * index
// flops a position.
void MlaIndexScores(IsaPath path, const MlaLayerView& layer, const MlaIndexQuery& query,
                    const std::byte* const* pages, int64_t begin, int64_t end, float* scores,
                    std::byte* scratch);

// Which positions a row attends: the `topk` of [0, positions) with the largest scores, the earlier
// one on ties; a NaN is smaller than all. Writes them to `picks`, ascending, and returns how many.
// All of them, without a look at the scores, when there are no more than `topk`. Changes `scores`.
// `scores` and `order`: room for `positions` values each, for `torch_length` if that is larger.
struct MlaPickOptions {
  int topk = 0;
  // For comparisons with Hugging Face: among equal scores those that torch.topk leaves in front on
  // a CPU, given this many scores of which the ones from `positions` on are -infinity (its causal
  // mask). Rows of one prompt then share the length of the prompt. 0: the earlier ones.
  int64_t torch_length = 0;
};
int MlaPick(const MlaPickOptions& options, int64_t positions, float* scores, int32_t* order,
            int32_t* picks);

// The same as MlaAttention for one row cut into pieces: tiles [tile_begin, tile_end) of heads
// [head_begin, head_end), written as one partial of MlaPartialFloats() per tile and head to
// `partials` [tile][head]; then MlaMerge over all MlaTiles() of the row, in order, writes `out`.
// The bits are those of MlaAttention(). `attended`: how many positions the row attends.
int MlaTiles(int64_t attended);
size_t MlaPartialFloats(const MlaLayerView& layer);
void MlaPartials(IsaPath path, const MlaLayerView& layer, const MlaRun& run, int row,
                 int head_begin, int head_end, int tile_begin, int tile_end, float* partials,
                 std::byte* scratch);
void MlaMerge(IsaPath path, const MlaLayerView& layer, const MlaRun& run, int row, int head_begin,
              int head_end, const float* partials);

}  // namespace sluice::kernels
