#include "kv/page_layout.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/hash.h"

namespace sluice::kv {
namespace {

using kernels::KvFormat;

constexpr uint64_t kPageBytesMax = uint64_t{256} << 20;
constexpr std::pair<KvFormat, absl::string_view> kFormatNames[] = {
    {KvFormat::kF32, "f32"},
    {KvFormat::kBf16, "bf16"},
    {KvFormat::kGqaFp8, "gqa_fp8"},
    {KvFormat::kGqaFp8c, "gqa_fp8c"},
    {KvFormat::kGqaInt8c, "gqa_int8c"},
    {KvFormat::kMlaFp8, "mla_fp8"},
    {KvFormat::kMlaFp8Tiles, "mla_fp8_656"}};

uint64_t Padded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// Whether a format stores this kind of cache.
bool Fits(KvFormat format, KvKind kind) {
  if (format == KvFormat::kF32 || format == KvFormat::kBf16) return true;
  return (format == KvFormat::kMlaFp8 || format == KvFormat::kMlaFp8Tiles) ==
         (kind == KvKind::kLatent);
}

// What the bytes of a format mean, where its name once meant something else: part of the hash, so
// that pages of such builds are not taken for each other's.
absl::string_view EncodingOf(KvFormat format) {
  return format == KvFormat::kGqaFp8c ? " ue5m3" : "";
}

// Bytes of the components of one layer, in order: latents, rotated keys, latent scales, rotated
// scales.
std::array<uint64_t, 4> LatentBytes(const LayoutSpec& spec) {
  const uint64_t rows = spec.page_tokens, latent = spec.head_dim, rope = spec.rope_dim;
  switch (spec.format) {
    case KvFormat::kF32:
      return {Padded(rows * latent * 4), Padded(rows * rope * 4), 0, 0};
    case KvFormat::kBf16:
      return {Padded(rows * latent * 2), Padded(rows * rope * 2), 0, 0};
    case KvFormat::kMlaFp8:
      return {Padded(rows * latent), Padded(rows * rope), Padded(rows), Padded(rows * 2)};
    case KvFormat::kMlaFp8Tiles: {
      const int64_t row =
          kernels::MlaTilesRowBytes(static_cast<int>(latent), static_cast<int>(rope));
      return {Padded(rows * static_cast<uint64_t>(row)), 0, 0, 0};
    }
    case KvFormat::kGqaFp8:
    case KvFormat::kGqaFp8c:
    case KvFormat::kGqaInt8c:
      break;
  }
  return {};
}

// Bytes of the components of one layer, in order: K, K scales, V, V scales.
std::array<uint64_t, 4> HeadBytes(const LayoutSpec& spec) {
  const uint64_t rows = uint64_t{spec.kv_heads} * spec.page_tokens;
  const uint64_t values = rows * spec.head_dim;
  switch (spec.format) {
    case KvFormat::kF32:
      return {Padded(values * 4), 0, Padded(values * 4), 0};
    case KvFormat::kBf16:
      return {Padded(values * 2), 0, Padded(values * 2), 0};
    case KvFormat::kGqaFp8:
    case KvFormat::kGqaFp8c:
      return {Padded(values), Padded(rows), Padded(values), Padded(rows)};
    case KvFormat::kGqaInt8c:
      return {Padded(values), Padded(rows * 2), Padded(values), Padded(rows * 2)};
    case KvFormat::kMlaFp8:
    case KvFormat::kMlaFp8Tiles:
      break;
  }
  return {};
}

std::array<uint64_t, 4> ComponentBytes(const LayoutSpec& spec) {
  return spec.kind() == KvKind::kLatent ? LatentBytes(spec) : HeadBytes(spec);
}

// Bytes of the index keys and their scales in a layer that has them.
std::array<uint64_t, 2> IndexBytes(const LayoutSpec& spec) {
  const uint64_t rows = spec.page_tokens;
  if (spec.format == KvFormat::kF32) return {Padded(rows * spec.index_dim * 4), 0};
  return {Padded(rows * spec.index_dim), Padded(rows * 4)};
}

bool HasIndex(const LayoutSpec& spec, uint32_t layer) {
  return std::binary_search(spec.index_layers.begin(), spec.index_layers.end(), layer);
}

absl::Status CheckIndex(const LayoutSpec& spec) {
  const std::vector<uint32_t>& layers = spec.index_layers;
  const bool ascending =
      std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
  const bool none = spec.index_dim == 0 && layers.empty();
  const bool fits = spec.kind() == KvKind::kLatent && spec.index_dim > 0 &&
                    spec.index_dim % 16 == 0 && !layers.empty() && ascending &&
                    layers.back() < spec.layers;
  if (none || fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("page layout: index keys of ", spec.index_dim, " elements in layers {",
                   absl::StrJoin(layers, ","), "} of ", spec.layers,
                   "; they take latent attention, a multiple of 16 and ascending layers"));
}

// Errors that a format of another kind, or a latent cache with heads, brings.
absl::Status CheckKind(const LayoutSpec& spec) {
  const bool latent = spec.kind() == KvKind::kLatent;
  if (!Fits(spec.format, spec.kind())) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV format '", KvFormatName(spec.format), "' is for ",
                     latent ? "keys and values per head, this model has latent attention; use "
                              "mla_fp8, mla_fp8_656, bf16 or f32"
                            : "latent attention, this model has keys and values per head; use "
                              "gqa_fp8, gqa_fp8c, gqa_int8c, bf16 or f32"));
  }
  if (latent && (spec.kv_heads != 1 || spec.sink_rows != 0 || spec.rope_dim % 16 != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page layout: latent attention with kv_heads ", spec.kv_heads, ", sink_rows ",
        spec.sink_rows, ", rope_dim ", spec.rope_dim, "; it takes 1, 0 and a multiple of 16"));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("page layout: ", field, " is ", value,
                                                 "; it must lie in [", low, ", ", high, "]"));
}

absl::Status CheckSpec(const LayoutSpec& spec) {
  const std::pair<absl::string_view, std::array<uint64_t, 3>> ranges[] = {
      {"version", {spec.version, 1, 1}},
      {"page_tokens", {spec.page_tokens, 16, 4096}},
      {"layers", {spec.layers, 1, 1024}},
      {"kv_heads", {spec.kv_heads, 1, 1024}},
      {"head_dim", {spec.head_dim, 16, spec.kind() == KvKind::kLatent ? 1024u : 256u}},
      {"rope_dim", {spec.rope_dim, 0, 256}},
      {"index_dim", {spec.index_dim, 0, 256}},
      {"sink_rows", {spec.sink_rows, 0, kernels::IsCentred(spec.format) ? 1u : 16u}},
      {"shard.count", {spec.shard.count, 1, 1024}},
      {"shard.rank",
       {spec.shard.rank, 0, uint64_t{spec.shard.count} - (spec.shard.count > 0 ? 1 : 0)}}};
  for (const auto& [field, range] : ranges) {
    const absl::Status status = CheckRange(field, range[0], range[1], range[2]);
    if (!status.ok()) return status;
  }
  if (spec.page_tokens % 16 != 0 || spec.head_dim % 16 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("page layout: page_tokens ", spec.page_tokens,
                                                   " and head_dim ", spec.head_dim,
                                                   " must be multiples of 16"));
  }
  if (spec.centre_digest.size() > 64)
    return absl::InvalidArgumentError("page layout: centre digest over 64 bytes");
  const absl::Status kind = CheckKind(spec);
  return kind.ok() ? CheckIndex(spec) : kind;
}

std::string DescribeSpec(const LayoutSpec& spec, uint64_t page_bytes) {
  return absl::StrCat(
      "{version ", spec.version, ", format ", KvFormatName(spec.format), ", page_tokens ",
      spec.page_tokens, ", layers ", spec.layers, ", kv_heads ", spec.kv_heads, ", head_dim ",
      spec.head_dim, ", rope_dim ", spec.rope_dim, ", index_dim ", spec.index_dim, " in layers {",
      absl::StrJoin(spec.index_layers, ","), "}, rope ",
      spec.rope_order == RopeOrder::kHalfSplit ? "half_split" : "interleaved", ", sink_rows ",
      spec.sink_rows, ", centre ",
      spec.centre_digest.empty() ? "none" : absl::BytesToHexString(spec.centre_digest), ", shard ",
      spec.shard.rank, "/", spec.shard.count,
      spec.shard.kind == Shard::Kind::kHeads ? " heads" : " replicated", ", page_bytes ",
      page_bytes, "}");
}

}  // namespace

absl::string_view KvFormatName(KvFormat format) {
  for (const auto& [value, name] : kFormatNames) {
    if (value == format) return name;
  }
  return "unknown";
}

KvFormat DefaultKvFormat(KvKind kind) {
  return kind == KvKind::kLatent ? KvFormat::kMlaFp8 : KvFormat::kGqaFp8c;
}

absl::StatusOr<KvFormat> ParseKvFormat(absl::string_view name) {
  std::string known;
  for (const auto& [value, text] : kFormatNames) {
    if (text == name) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", text);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown KV format '", name, "'; known: ", known));
}

absl::StatusOr<PageLayout> PageLayout::Make(const LayoutSpec& spec) {
  const absl::Status status = CheckSpec(spec);
  if (!status.ok()) return status;
  PageLayout layout;
  layout.spec_ = spec;
  uint64_t layer_bytes = 0;
  for (uint64_t bytes : ComponentBytes(spec)) layer_bytes += bytes;
  const uint64_t index_bytes = IndexBytes(spec)[0] + IndexBytes(spec)[1];
  const uint64_t page_bytes =
      kPageHeaderBytes + layer_bytes * spec.layers + index_bytes * spec.index_layers.size();
  if (page_bytes > kPageBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("page layout ", DescribeSpec(spec, page_bytes),
                                                   ": a page of ", page_bytes, " bytes is over ",
                                                   kPageBytesMax, "; use fewer page_tokens"));
  }
  layout.layer_bytes_ =
      static_cast<uint32_t>(layer_bytes + (spec.index_layers.empty() ? 0 : index_bytes));
  layout.layer_begin_ = {kPageHeaderBytes};
  for (uint32_t i = 0; i < spec.layers; ++i) {
    const uint64_t bytes = layer_bytes + (HasIndex(spec, i) ? index_bytes : 0);
    layout.layer_begin_.push_back(layout.layer_begin_.back() + static_cast<uint32_t>(bytes));
  }
  layout.page_bytes_ = static_cast<uint32_t>(page_bytes);
  const std::string text = absl::StrCat(DescribeSpec(spec, page_bytes), EncodingOf(spec.format));
  layout.hash_ = Hash128(text.data(), text.size());
  return layout;
}

kernels::KvLayerView PageLayout::LayerView(uint32_t layer) const {
  SLUICE_CHECK(layer < spec_.layers && spec_.kind() == KvKind::kHeads) << Describe();
  const std::array<uint64_t, 4> bytes = ComponentBytes(spec_);
  kernels::KvLayerView view;
  view.format = spec_.format;
  view.page_tokens = static_cast<int>(spec_.page_tokens);
  view.kv_heads = static_cast<int>(spec_.kv_heads);
  view.head_dim = static_cast<int>(spec_.head_dim);
  view.sink_rows = static_cast<int>(spec_.sink_rows);
  view.k_offset = layer_begin_[layer];
  view.k_scale_offset = view.k_offset + static_cast<uint32_t>(bytes[0]);
  view.v_offset = view.k_scale_offset + static_cast<uint32_t>(bytes[1]);
  view.v_scale_offset = view.v_offset + static_cast<uint32_t>(bytes[2]);
  return view;
}

kernels::MlaLayerView PageLayout::MlaView(uint32_t layer) const {
  SLUICE_CHECK(layer < spec_.layers && spec_.kind() == KvKind::kLatent) << Describe();
  const std::array<uint64_t, 4> bytes = ComponentBytes(spec_);
  kernels::MlaLayerView view;
  view.format = spec_.format;
  view.page_tokens = static_cast<int>(spec_.page_tokens);
  view.latent = static_cast<int>(spec_.head_dim);
  view.rope = static_cast<int>(spec_.rope_dim);
  view.latent_offset = layer_begin_[layer];
  view.rope_offset = view.latent_offset + static_cast<uint32_t>(bytes[0]);
  view.latent_scale_offset = view.rope_offset + static_cast<uint32_t>(bytes[1]);
  view.rope_scale_offset = view.latent_scale_offset + static_cast<uint32_t>(bytes[2]);
  if (!HasIndex(spec_, layer)) return view;
  view.index = static_cast<int>(spec_.index_dim);
  view.index_offset = view.rope_scale_offset + static_cast<uint32_t>(bytes[3]);
  view.index_scale_offset = view.index_offset + static_cast<uint32_t>(IndexBytes(spec_)[0]);
  return view;
}

ByteRange PageLayout::PieceRange(uint32_t layer_begin, uint32_t layer_end) const {
  SLUICE_DCHECK(layer_begin <= layer_end && layer_end <= spec_.layers);
  return {layer_begin_[layer_begin], layer_begin_[layer_end] - layer_begin_[layer_begin]};
}

uint32_t PageLayout::PagesFor(uint32_t tokens) const {
  if (tokens == 0) return 0;
  const uint64_t slots = uint64_t{tokens} + spec_.sink_rows;
  return static_cast<uint32_t>((slots + spec_.page_tokens - 1) / spec_.page_tokens);
}

double PageLayout::BytesPerToken() const {
  return static_cast<double>(page_bytes_) / static_cast<double>(spec_.page_tokens);
}

std::string PageLayout::Describe() const { return DescribeSpec(spec_, page_bytes_); }

}  // namespace sluice::kv
