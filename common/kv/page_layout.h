// The one description of a page's bytes. DESIGN: a page is [header 64 B][layer][components], all
// layers of one block of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "kernels/params.h"

namespace sluice::kv {

// How a KV cache is divided among tensor-parallel ranks.
struct Shard {
  enum class Kind { kHeads, kReplicated };
  uint32_t rank = 0;
  uint32_t count = 1;
  Kind kind = Kind::kHeads;
};

enum class RopeOrder { kHalfSplit, kInterleaved };

// A KV cache holds keys and values per head, or (latent attention) one row per token for all heads.
enum class KvKind { kHeads, kLatent };

// Everything that decides the bytes of a page. Plain input to PageLayout::Make.
struct LayoutSpec {
  uint32_t version = 1;
  kernels::KvFormat format = kernels::KvFormat::kGqaFp8;
  uint32_t page_tokens = 32;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;  // latent attention: 1
  uint32_t head_dim = 0;  // latent attention: width of the latent
  uint32_t rope_dim = 0;  // latent attention: width of the rotated key beside it; else 0
  // Latent attention over picked positions: width of the index keys, and the layers that have them,
  // ascending.
  uint32_t index_dim = 0;
  std::vector<uint32_t> index_layers;
  RopeOrder rope_order = RopeOrder::kHalfSplit;
  uint32_t sink_rows = 0;
  std::string centre_digest;  // empty: keys and values are not centred
  Shard shard;

  KvKind kind() const { return rope_dim > 0 ? KvKind::kLatent : KvKind::kHeads; }
};

// First bytes of every page. Written by the pool at allocation; compared before pages are attended.
struct PageHeader {
  uint64_t generation;
  uint64_t owner_high;  // Id128 of the sequence or block that owns the page
  uint64_t owner_low;
  uint64_t reserved[5];
};
static_assert(sizeof(PageHeader) == 64);
inline constexpr uint32_t kPageHeaderBytes = sizeof(PageHeader);

// Byte range inside a page.
struct ByteRange {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// Immutable value. Every component of a layer is padded to 64 bytes, a page to 64 bytes.
class PageLayout {
 public:
  PageLayout() = default;
  // Errors: INVALID_ARGUMENT for zero or absurd dimensions, page_tokens not a multiple of 16, a
  // format of another kind of attention, or a page over 256 MiB.
  static absl::StatusOr<PageLayout> Make(const LayoutSpec& spec);

  const LayoutSpec& spec() const { return spec_; }
  uint32_t page_tokens() const { return spec_.page_tokens; }
  uint32_t page_bytes() const { return page_bytes_; }
  // Of the largest layer: those with index keys are larger than the others.
  uint32_t layer_bytes() const { return layer_bytes_; }

  // Where a layer's components lie, as kernels take it: of keys and values per head, and of latent
  // attention. CHECKs the kind.
  kernels::KvLayerView LayerView(uint32_t layer) const;
  kernels::MlaLayerView MlaView(uint32_t layer) const;
  // The piece that layers [begin, end) of a page form.
  ByteRange PieceRange(uint32_t layer_begin, uint32_t layer_end) const;
  // Pages that hold `tokens` tokens, sink rows included.
  uint32_t PagesFor(uint32_t tokens) const;
  // Bytes a token costs over all layers, scales and padding counted.
  double BytesPerToken() const;

  // Hash over every field of the spec; equal hashes mean pages can be exchanged.
  Id128 hash() const { return hash_; }
  // One line with every field, for errors that refuse a pairing.
  std::string Describe() const;

 private:
  LayoutSpec spec_;
  std::vector<uint32_t> layer_begin_;  // [layers + 1] offsets in the page
  uint32_t layer_bytes_ = 0;
  uint32_t page_bytes_ = 0;
  Id128 hash_;
};

// The format that "auto" means: FP8 of this kind.
kernels::KvFormat DefaultKvFormat(KvKind kind);

// "f32", "bf16", "gqa_fp8", "gqa_fp8c", "gqa_int8c", "mla_fp8", "mla_fp8_656" and back. Errors:
// INVALID_ARGUMENT listing the known names.
absl::string_view KvFormatName(kernels::KvFormat format);
absl::StatusOr<kernels::KvFormat> ParseKvFormat(absl::string_view name);

}  // namespace sluice::kv
