// Causal attention over a paged KV cache with grouped query heads (GQA).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/params.h"

namespace sluice::kernels {

// Positions per KV tile. A query's result is its tiles' (max, sum, weighted values) merged in
// ascending order. Tiles begin at absolute multiples, so a row's bits do not depend on how rows
// were grouped into calls.
inline constexpr int kAttentionTile = 256;

// A run of consecutive tokens of one sequence. Row r is the token at position first_position + r;
// it attends positions 0 .. first_position + r, whose keys and values are in the pages already, its
// own included.
struct AttentionRun {
  const float* q = nullptr;  // [rows][heads][head_dim] f32 after norm and rotation
  float* out = nullptr;      // [rows][heads][head_dim] f32
  // Distance between rows in floats (at least heads * head_dim), so that q may lie inside a fused
  // QKV output.
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  int heads =
      0;  // query heads, a multiple of layer.kv_heads; head h reads KV head h / (heads / kv_heads)
  int64_t first_position = 0;
  // Block table: pages[i] is the start of the page that holds slots [i * page_tokens, (i + 1) *
  // page_tokens).
  const std::byte* const* pages = nullptr;
  float scale = 0;  // multiplies q.k; usually head_dim^-0.5
};

// Bytes of scratch that one call of Attention needs (64-byte aligned), whatever the rows and
// positions.
size_t AttentionScratchBytes(const KvLayerView& layer, int heads);

// out[r][h] = softmax(scale * q[r][h] . K) V for rows [row_begin, row_end) and KV heads
// [kv_head_begin, kv_head_end) with all query heads of each. Within a path the bits of out[r][h]
// depend only on q[r][h], the sequence's pages and the position: never on the number of rows, the
// row range, the head range or other sequences. Threads: calls that write different (row, head) may
// run at once, each with its own `scratch`. For even work split rows into blocks of 16 or 32 and
// heads one by one. Cost: 4 * head_dim * positions flops per row and head; a KV tile is read and
// expanded once per block of 16 rows.
void Attention(IsaPath path, const KvLayerView& layer, const AttentionRun& run, int row_begin,
               int row_end, int kv_head_begin, int kv_head_end, std::byte* scratch);

// The same for one row cut into pieces, so that one long sequence keeps several cores busy: tiles
// [tile_begin, tile_end) of one row and KV head, each written as one partial of
// AttentionPartialFloats() floats, tile by tile, to `partials`; then AttentionMerge over all
// AttentionTiles() of the row, in order, writes `out`. The bits are those of Attention().
int AttentionTiles(const KvLayerView& layer, int64_t position);
size_t AttentionPartialFloats(const KvLayerView& layer, int heads);
void AttentionPartials(IsaPath path, const KvLayerView& layer, const AttentionRun& run, int row,
                       int kv_head, int tile_begin, int tile_end, float* partials,
                       std::byte* scratch);
void AttentionMerge(IsaPath path, const KvLayerView& layer, const AttentionRun& run, int row,
                    int kv_head, const float* partials);

}  // namespace sluice::kernels
