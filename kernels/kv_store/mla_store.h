// Writes and reads the rows of a latent attention cache as the page format says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/params.h"

namespace sluice::kernels {

// Rows of consecutive tokens of one sequence and one layer: latents [rows][latent] after their norm
// and rotated keys [rows][rope], float32. Row r starts at latent + r * latent_stride (in floats)
// and rope + r * rope_stride.
struct MlaRows {
  const float* latent = nullptr;
  const float* rope = nullptr;
  int64_t latent_stride = 0;
  int64_t rope_stride = 0;
};

// Stores rows [row_begin, row_end), whose row r is the token at `first_position` + r, into the
// sequence's pages (the block table: pages[i] holds positions [i * page_tokens, ...)). Writes only
// the bytes of these rows, zero padding left alone; every path writes the same bytes.
//   kMlaFp8: latent as e4m3 over the smallest power of two that fits the row; rope as int8
//     (Int8ScaleFor).
//   kMlaFp8Tiles: latent as e4m3 over amax / 448 of each 128 elements (float32, at least FLT_MIN);
//     rope as bf16.
// All-zero parts have scale 1; codes round to nearest even and saturate; a NaN becomes the largest
// code. Threads: calls on different rows may run at once, also within one page.
void StoreMla(IsaPath path, const MlaLayerView& layer, std::byte* const* pages,
              int64_t first_position, const MlaRows& rows, int row_begin, int row_end);

// Index keys [rows][index], after norm and rotation, into a layer that has them. Not f32: e4m3 over
// max(amax, 1e-4) / 448. As StoreMla otherwise.
void StoreMlaIndex(IsaPath path, const MlaLayerView& layer, std::byte* const* pages,
                   int64_t first_position, const float* keys, int64_t stride, int row_begin,
                   int row_end);
// Reads one back: out [index].
void LoadMlaIndex(const MlaLayerView& layer, const std::byte* page, int row, float* out);

// Reads row `row` of a page back as float32: out [latent + rope]. What a page holds is what every
// path attends, bit for bit.
void LoadMlaRow(const MlaLayerView& layer, const std::byte* page, int row, float* out);

}  // namespace sluice::kernels
