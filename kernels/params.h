// Shapes and layouts that kernels take: plain structs, no dependencies. The layer above fills them
// in.
#pragma once

#include <cstdint>

namespace sluice::kernels {

// How one layer of a page stores keys and values. H = kv_heads, P = page_tokens, D = head_dim.
enum class KvFormat : uint8_t {
  kF32,     // K [H][P][D] f32, V [H][P][D] f32.
  kBf16,    // K [H][P/16][D/2][16][2] bf16 (pairs along D), V [H][P][D] bf16.
  kGqaFp8,  // K codes [H][P/16][D/4][16][4] e4m3, K scales [H][P] UE8M0, V codes [H][P][D] e4m3, V
            // scales [H][P] UE8M0.
};

// Tokens of one interleaved K block: one 64-byte load then feeds 16 tokens and no horizontal sum is
// needed.
inline constexpr int kKvBlockTokens = 16;

// Where one layer's keys and values lie inside a page. Offsets are bytes from the start of the
// page; every component starts at a multiple of 64. Scale offsets are read only by formats that
// have scales. Needs: page_tokens a multiple of 16; head_dim a multiple of 16, at most 256;
// sink_rows >= 0.
struct KvLayerView {
  KvFormat format = KvFormat::kF32;
  int page_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Slots at the start of a sequence that hold no token of their own; the formats above have none.
  int sink_rows = 0;
  uint32_t k_offset = 0;
  uint32_t k_scale_offset = 0;
  uint32_t v_offset = 0;
  uint32_t v_scale_offset = 0;
};

// The slot that holds `position` of a sequence: page `slot / page_tokens` of its block table, row
// `slot % page_tokens`. The only place that knows this mapping.
inline constexpr int64_t SlotOfPosition(int64_t position, int sink_rows) {
  return position + sink_rows;
}

}  // namespace sluice::kernels
