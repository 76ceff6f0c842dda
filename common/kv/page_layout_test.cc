#include "kv/page_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::kv {
namespace {

LayoutSpec SmolSpec() {
  LayoutSpec spec;
  spec.layers = 30;
  spec.kv_heads = 3;
  spec.head_dim = 64;
  return spec;
}

TEST(PageLayout, ComponentsFollowEachOtherPaddedTo64Bytes) {
  const auto layout = PageLayout::Make(SmolSpec());
  ASSERT_TRUE(layout.ok());
  const kernels::KvLayerView first = layout->LayerView(0);
  EXPECT_EQ(first.k_offset, 64u);
  EXPECT_EQ(first.k_scale_offset, 64u + 3 * 32 * 64);
  EXPECT_EQ(first.v_offset, first.k_scale_offset + 128u);  // 96 scales, padded
  EXPECT_EQ(first.v_scale_offset, first.v_offset + 3 * 32 * 64);
  EXPECT_EQ(layout->LayerView(1).k_offset, 64u + layout->layer_bytes());
  EXPECT_EQ(layout->page_bytes(), 64u + 30 * layout->layer_bytes());
  const ByteRange piece = layout->PieceRange(2, 5);
  EXPECT_EQ(piece.offset, 64u + 2 * layout->layer_bytes());
  EXPECT_EQ(piece.bytes, 3 * layout->layer_bytes());
}

// The bar of the design: at least 1.95 times the tokens of BF16 in the same bytes, scales, padding
// and header counted.
TEST(PageLayout, Fp8HoldsTwiceTheTokens) {
  LayoutSpec spec = SmolSpec();
  const double fp8 = PageLayout::Make(spec)->BytesPerToken();
  spec.format = kernels::KvFormat::kBf16;
  EXPECT_GE(PageLayout::Make(spec)->BytesPerToken() / fp8, 1.95);
}

// The table of the design: codes and scales of H heads of D dims, each component padded to 64
// bytes.
TEST(PageLayout, BytesOfALayerAreThoseOfTheDesign) {
  const auto padded = [](uint32_t bytes) { return (bytes + 63) / 64 * 64; };
  for (uint32_t heads : {1u, 2u, 3u, 8u}) {
    for (uint32_t dim : {64u, 128u}) {
      for (uint32_t tokens : {16u, 32u, 64u}) {
        LayoutSpec spec = SmolSpec();
        spec.kv_heads = heads;
        spec.head_dim = dim;
        spec.page_tokens = tokens;
        const auto bytes = [&](kernels::KvFormat format) {
          spec.format = format;
          return PageLayout::Make(spec)->layer_bytes();
        };
        const uint32_t rows = tokens * heads;
        EXPECT_EQ(bytes(kernels::KvFormat::kBf16), rows * 4 * dim);
        EXPECT_EQ(bytes(kernels::KvFormat::kGqaFp8), 2 * (rows * dim + padded(rows)));
        EXPECT_EQ(bytes(kernels::KvFormat::kGqaFp8c), bytes(kernels::KvFormat::kGqaFp8));
        EXPECT_EQ(bytes(kernels::KvFormat::kGqaInt8c), 2 * (rows * dim + padded(rows * 2)));
      }
    }
  }
}

TEST(PageLayout, ACentredLayoutHasOneSinkRowAtMost) {
  LayoutSpec spec = SmolSpec();
  spec.format = kernels::KvFormat::kGqaFp8c;
  spec.sink_rows = 1;
  EXPECT_TRUE(PageLayout::Make(spec).ok());
  spec.sink_rows = 2;
  EXPECT_THAT(std::string(PageLayout::Make(spec).status().message()),
              testing::HasSubstr("sink_rows is 2"));
}

LayoutSpec KimiSpec(kernels::KvFormat format) {
  LayoutSpec spec;
  spec.format = format;
  spec.page_tokens = 64;
  spec.layers = 61;
  spec.kv_heads = 1;
  spec.head_dim = 512;
  spec.rope_dim = 64;
  return spec;
}

TEST(PageLayout, LatentComponentsFollowEachOther) {
  const auto layout = PageLayout::Make(KimiSpec(kernels::KvFormat::kMlaFp8));
  ASSERT_TRUE(layout.ok()) << layout.status();
  const kernels::MlaLayerView view = layout->MlaView(1);
  EXPECT_EQ(view.latent, 512);
  EXPECT_EQ(view.rope, 64);
  EXPECT_EQ(layout->layer_bytes(), 64u * (512 + 64 + 1 + 2));  // 579 a token
  EXPECT_EQ(view.latent_offset, 64u + layout->layer_bytes());
  EXPECT_EQ(view.rope_offset, view.latent_offset + 64 * 512);
  EXPECT_EQ(view.latent_scale_offset, view.rope_offset + 64 * 64);
  EXPECT_EQ(view.rope_scale_offset, view.latent_scale_offset + 64);
  const auto tiles = PageLayout::Make(KimiSpec(kernels::KvFormat::kMlaFp8Tiles));
  EXPECT_EQ(tiles->layer_bytes(), 64u * 656);
  const auto bf16 = PageLayout::Make(KimiSpec(kernels::KvFormat::kBf16));
  EXPECT_EQ(bf16->layer_bytes(), 64u * 1152);
  EXPECT_GE(bf16->BytesPerToken() / layout->BytesPerToken(), 1.98);
}

TEST(PageLayout, OnlyLayersThatPickHaveIndexKeys) {
  LayoutSpec spec = KimiSpec(kernels::KvFormat::kMlaFp8);
  const auto plain = PageLayout::Make(spec);
  spec.index_dim = 128;
  spec.index_layers = {0, 2};
  const auto layout = PageLayout::Make(spec);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const uint32_t keys = 64 * 132;
  EXPECT_EQ(layout->page_bytes(), plain->page_bytes() + 2 * keys);
  EXPECT_EQ(layout->layer_bytes(), plain->layer_bytes() + keys);
  EXPECT_EQ(layout->MlaView(1).index, 0);
  const kernels::MlaLayerView view = layout->MlaView(2);
  EXPECT_EQ(view.index, 128);
  EXPECT_EQ(view.latent_offset, 64u + 2 * plain->layer_bytes() + keys);
  EXPECT_EQ(view.index_offset, view.latent_offset + plain->layer_bytes());
  EXPECT_EQ(view.index_scale_offset, view.index_offset + 64 * 128);
  EXPECT_EQ(layout->PieceRange(2, 61).offset + layout->PieceRange(2, 61).bytes,
            layout->page_bytes());
  EXPECT_NE(layout->hash(), plain->hash());
  for (const std::vector<uint32_t>& layers : {std::vector<uint32_t>{}, {2, 0}, {1, 1}, {61}}) {
    spec.index_layers = layers;
    EXPECT_FALSE(PageLayout::Make(spec).ok());
  }
}

TEST(PageLayout, RefusesAFormatOfAnotherKind) {
  EXPECT_THAT(
      std::string(PageLayout::Make(KimiSpec(kernels::KvFormat::kGqaFp8)).status().message()),
      testing::HasSubstr("use mla_fp8"));
  LayoutSpec spec = SmolSpec();
  spec.format = kernels::KvFormat::kMlaFp8;
  EXPECT_THAT(std::string(PageLayout::Make(spec).status().message()),
              testing::HasSubstr("use gqa_fp8"));
  // Rows without their rotated part, or with heads.
  spec = KimiSpec(kernels::KvFormat::kMlaFp8);
  spec.rope_dim = 0;
  EXPECT_FALSE(PageLayout::Make(spec).ok());
  spec = KimiSpec(kernels::KvFormat::kMlaFp8);
  spec.kv_heads = 2;
  EXPECT_THAT(std::string(PageLayout::Make(spec).status().message()),
              testing::HasSubstr("kv_heads 2"));
  for (auto kind : {KvKind::kHeads, KvKind::kLatent}) {
    spec = kind == KvKind::kHeads ? SmolSpec() : KimiSpec(kernels::KvFormat::kF32);
    spec.format = DefaultKvFormat(kind);
    EXPECT_TRUE(PageLayout::Make(spec).ok());
  }
}

TEST(PageLayout, PagesCountSinkRows) {
  LayoutSpec spec = SmolSpec();
  EXPECT_EQ(PageLayout::Make(spec)->PagesFor(0), 0u);
  EXPECT_EQ(PageLayout::Make(spec)->PagesFor(32), 1u);
  EXPECT_EQ(PageLayout::Make(spec)->PagesFor(33), 2u);
  spec.sink_rows = 1;
  EXPECT_EQ(PageLayout::Make(spec)->PagesFor(32), 2u);
}

TEST(PageLayout, EveryFieldChangesTheHash) {
  const Id128 hash = PageLayout::Make(SmolSpec())->hash();
  const auto changed = [&](auto change) {
    LayoutSpec spec = SmolSpec();
    change(spec);
    return PageLayout::Make(spec)->hash();
  };
  EXPECT_EQ(changed([](LayoutSpec&) {}), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.format = kernels::KvFormat::kBf16; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.page_tokens = 64; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.layers = 29; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.kv_heads = 1; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.head_dim = 128; }), hash);
  EXPECT_NE(PageLayout::Make(KimiSpec(kernels::KvFormat::kBf16))->hash(), [] {
    LayoutSpec spec = KimiSpec(kernels::KvFormat::kBf16);
    spec.rope_dim = 32;
    return PageLayout::Make(spec)->hash();
  }());
  EXPECT_NE(changed([](LayoutSpec& s) { s.rope_order = RopeOrder::kInterleaved; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.sink_rows = 1; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.centre_digest = "x"; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.shard = {1, 2, Shard::Kind::kHeads}; }), hash);
  EXPECT_NE(changed([](LayoutSpec& s) { s.shard.kind = Shard::Kind::kReplicated; }), hash);
}

TEST(PageLayout, RefusesAbsurdShapesByName) {
  LayoutSpec spec = SmolSpec();
  spec.page_tokens = 33;
  EXPECT_THAT(std::string(PageLayout::Make(spec).status().message()),
              testing::HasSubstr("page_tokens 33"));
  spec = SmolSpec();
  spec.layers = 0;
  EXPECT_THAT(std::string(PageLayout::Make(spec).status().message()),
              testing::HasSubstr("layers is 0"));
  spec = SmolSpec();
  spec.page_tokens = 4096;
  spec.kv_heads = 1024;
  EXPECT_THAT(std::string(PageLayout::Make(spec).status().message()),
              testing::HasSubstr("fewer page_tokens"));
}

TEST(KvFormat, NamesRoundTrip) {
  for (auto format : {kernels::KvFormat::kF32, kernels::KvFormat::kBf16, kernels::KvFormat::kGqaFp8,
                      kernels::KvFormat::kGqaFp8c, kernels::KvFormat::kGqaInt8c,
                      kernels::KvFormat::kMlaFp8, kernels::KvFormat::kMlaFp8Tiles}) {
    EXPECT_EQ(*ParseKvFormat(KvFormatName(format)), format);
  }
  EXPECT_THAT(std::string(ParseKvFormat("fp4").status().message()), testing::HasSubstr("gqa_fp8"));
}

}  // namespace
}  // namespace sluice::kv
