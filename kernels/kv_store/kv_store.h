// Writes keys and values into the pages of a KV cache, quantised as the page format says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/params.h"

namespace sluice::kernels {

// Keys and values of a run of consecutive tokens of one sequence and one layer.
struct KvRows {
  // [rows][kv_heads][head_dim] f32 after norm and rotation; row r starts at k + r * k_stride (in
  // floats; a stride larger than kv_heads * head_dim lets rows stay inside a fused QKV output). The
  // same for v.
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
};

// Stores rows [row_begin, row_end), whose row r is the token at `first_position` + r, into the
// sequence's pages. `pages`: the block table: pages[i] is the start of the page that holds slots [i
// * page_tokens, ...); all slots written must be covered. Writes only the bytes of these slots.
// Position 0 of a layout with a second term writes its sink row, too. Every path writes the same
// bytes. kF32 and kBf16 keep NaN and infinity; the others saturate both to the largest code.
// Threads: calls on different rows may run at once, also within one page. Cost: about 5 operations
// a value; reads 4 bytes and writes the format's bytes per value.
void StoreKv(IsaPath path, const KvLayerView& layer, std::byte* const* pages,
             int64_t first_position, const KvRows& rows, int row_begin, int row_end);

// Reads one slot back as float32, as stored: k, v [kv_heads][head_dim]. `page` is the page that
// holds it, `row` its row there. For tests and checks; attention does this inside its tiles.
void LoadKvSlot(const KvLayerView& layer, const std::byte* page, int row, float* k, float* v);

// Keys and values of a token as attention sees them: both terms of position 0, the centre added
// back. k, v: [kv_heads][head_dim]; `pages`: the block table. For calibration, tests and checks.
void LoadKv(const KvLayerView& layer, const std::byte* const* pages, int64_t position, float* k,
            float* v);

}  // namespace sluice::kernels
