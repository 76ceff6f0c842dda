#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/fp/fp.h"
#include "kernels/kv_store/mla_store.h"
#include "kernels/mla/mla_attention.h"
#include "kernels/mla/mla_test_pages.h"

namespace sluice::kernels {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kMlaFp8,
                                 KvFormat::kMlaFp8Tiles};

std::vector<float> Random(uint64_t seed, size_t n, double spread) {
  SeededRandom random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>((random.Unit() * 2 - 1) * spread);
  return values;
}

// One sequence with its rows stored and a query for every row and head.
class Sequence {
 public:
  Sequence(KvFormat format, int latent, int rope, int heads, int tokens)
      : layout_(format, latent, rope, 32),
        heads_(heads),
        tokens_(tokens),
        // Unwritten bytes are NaN in every format: an attended row that is not ours spoils the
        // result.
        pages_(layout_, tokens, std::byte{0xff}),
        q_(Random(1, static_cast<size_t>(tokens * heads * (latent + rope)), 1)) {
    const int width = latent + rope;
    std::vector<float> rows = Random(2, static_cast<size_t>(tokens * width), 1);
    // Rising rows give later tiles new maxima, so merging has work to do.
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < width; ++i) rows[Index(t, width, i)] *= 1 + static_cast<float>(t) / 200;
    }
    StoreMla(IsaPath::kReference, layer(), pages_.table(), 0,
             {rows.data(), rows.data() + latent, width, width}, 0, tokens);
  }

  const MlaLayerView& layer() const { return layout_.layer; }
  int heads() const { return heads_; }
  int tokens() const { return tokens_; }
  size_t out_floats() const { return static_cast<size_t>(tokens_ * heads_ * layer().latent); }

  // Rows [begin, end), given as one run that starts at `begin`, of heads [head_begin, head_end).
  void Attend(IsaPath path, int begin, int end, int head_begin, int head_end,
              std::vector<float>* out) const {
    std::vector<std::byte> scratch(MlaScratchBytes(layer()));
    MlaAttention(path, layer(), Run(begin, out), 0, end - begin, head_begin, head_end,
                 scratch.data());
  }
  std::vector<float> AttendAll(IsaPath path) const {
    std::vector<float> out(out_floats(), NAN);
    Attend(path, 0, tokens_, 0, heads_, &out);
    return out;
  }
  // Every row attends its picks: picks [tokens][tokens].
  MlaRun PickRun(const std::vector<int32_t>& picks, const std::vector<int32_t>& counts,
                 std::vector<float>* out) const {
    MlaRun run = Run(0, out);
    run.picks = picks.data();
    run.pick_counts = counts.data();
    run.pick_stride = tokens_;
    return run;
  }
  std::vector<float> AttendPicks(IsaPath path, const std::vector<int32_t>& picks,
                                 const std::vector<int32_t>& counts) const {
    std::vector<float> out(out_floats(), NAN);
    std::vector<std::byte> scratch(MlaScratchBytes(layer()));
    const MlaRun run = PickRun(picks, counts, &out);
    MlaAttention(path, layer(), run, 0, tokens_, 0, heads_, scratch.data());
    return out;
  }
  void Load(int token, float* row) const {
    LoadMlaRow(layer(), pages_.table()[token / 32], token % 32, row);
  }
  // Row `row` tile by tile, in two ranges of heads.
  std::vector<float> AttendByTiles(IsaPath path, int row) const {
    std::vector<float> out(out_floats(), NAN);
    AttendByTiles(path, Run(0, &out), row, row + 1);
    return out;
  }
  void AttendByTiles(IsaPath path, const MlaRun& run, int row, int attended) const {
    std::vector<std::byte> scratch(MlaScratchBytes(layer()));
    const int tiles = MlaTiles(attended);
    const int cut = heads_ / 3;
    for (const auto& [begin, end] : {std::pair(0, cut), std::pair(cut, heads_)}) {
      const size_t tile_floats = static_cast<size_t>(end - begin) * MlaPartialFloats(layer());
      std::vector<float> partials(tile_floats * static_cast<size_t>(tiles));
      // Last tile first: partials do not depend on one another.
      for (int tile = tiles - 1; tile >= 0; --tile) {
        MlaPartials(path, layer(), run, row, begin, end, tile, tile + 1,
                    partials.data() + tile_floats * static_cast<size_t>(tile), scratch.data());
      }
      MlaMerge(path, layer(), run, row, begin, end, partials.data());
    }
  }

  // Textbook attention in double precision over what the pages hold.
  std::vector<double> Exact(int row) const {
    const int width = layer().width();
    std::vector<float> rows(static_cast<size_t>((row + 1) * width));
    for (int t = 0; t <= row; ++t) {
      LoadMlaRow(layer(), pages_.table()[t / 32], t % 32, rows.data() + t * width);
    }
    std::vector<double> out;
    for (int h = 0; h < heads_; ++h) {
      std::vector<double> weights;
      for (int t = 0; t <= row; ++t) {
        double dot = 0;
        for (int d = 0; d < width; ++d) {
          dot += double{q_[Index(row * heads_ + h, width, d)]} * double{rows[Index(t, width, d)]};
        }
        weights.push_back(dot * kScale);
      }
      const double max = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) sum += weight = std::exp(weight - max);
      for (int d = 0; d < layer().latent; ++d) {
        double value = 0;
        for (int t = 0; t <= row; ++t) {
          value += weights[static_cast<size_t>(t)] * double{rows[Index(t, width, d)]};
        }
        out.push_back(value / sum);
      }
    }
    return out;
  }

 private:
  static constexpr float kScale = 0.125f;
  static size_t Index(int row, int width, int d) { return static_cast<size_t>(row * width + d); }

  MlaRun Run(int first, std::vector<float>* out) const {
    MlaRun run;
    run.q_stride = int64_t{heads_} * layer().width();
    run.out_stride = int64_t{heads_} * layer().latent;
    run.q = q_.data() + first * run.q_stride;
    run.out = out->data() + first * run.out_stride;
    run.heads = heads_;
    run.first_position = first;
    run.pages = pages_.const_table();
    run.scale = kScale;
    return run;
  }

  const MlaTestLayout layout_;
  const int heads_;
  const int tokens_;
  MlaTestPages pages_;
  const std::vector<float> q_;
};

bool SameBits(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

TEST(MlaAttentionTest, EveryPathIsCloseToDoublePrecision) {
  for (KvFormat format : kFormats) {
    const Sequence sequence(format, 144, 32, 5, 530);
    const size_t row_floats = sequence.out_floats() / 530;
    for (IsaPath path : AvailableIsaPaths()) {
      const std::vector<float> out = sequence.AttendAll(path);
      for (int row : {0, 1, 15, 16, 255, 256, 400, 511, 512, 529}) {
        const std::vector<double> exact = sequence.Exact(row);
        for (size_t i = 0; i < row_floats; ++i) {
          ASSERT_NEAR(double{out[static_cast<size_t>(row) * row_floats + i]}, exact[i], 2e-5)
              << std::string(IsaPathName(path)) << " format " << static_cast<int>(format) << " row "
              << row << " element " << i;
        }
      }
    }
  }
}

TEST(MlaAttentionTest, GroupingRowsAndHeadsChangesNoBit) {
  for (KvFormat format : kFormats) {
    const Sequence sequence(format, 64, 16, 7, 300);
    const size_t row_floats = sequence.out_floats() / 300;
    for (IsaPath path : AvailableIsaPaths()) {
      const std::vector<float> whole = sequence.AttendAll(path);
      std::vector<float> cut(sequence.out_floats(), NAN);
      const int rows[] = {0, 1, 4, 37, 255, 256, 257, 300};
      for (size_t i = 0; i + 1 < std::size(rows); ++i) {
        for (int head = 0; head < 7; head += 2) {
          sequence.Attend(path, rows[i], rows[i + 1], head, std::min(head + 2, 7), &cut);
        }
      }
      EXPECT_TRUE(SameBits(cut.data(), whole.data(), whole.size()))
          << std::string(IsaPathName(path)) << " format " << static_cast<int>(format);
      for (int row : {0, 100, 299}) {
        const std::vector<float> tiles = sequence.AttendByTiles(path, row);
        const size_t at = static_cast<size_t>(row) * row_floats;
        EXPECT_TRUE(SameBits(tiles.data() + at, whole.data() + at, row_floats)) << row;
      }
    }
  }
}

// More heads than share one expansion.
TEST(MlaAttentionTest, ManyHeadsOfOneRow) {
  const Sequence sequence(KvFormat::kMlaFp8, 32, 16, 130, 20);
  for (IsaPath path : AvailableIsaPaths()) {
    std::vector<float> one(sequence.out_floats(), NAN);
    for (int head = 0; head < 130; ++head) sequence.Attend(path, 19, 20, head, head + 1, &one);
    const std::vector<float> all = sequence.AttendAll(path);
    const size_t row = sequence.out_floats() / 20;
    EXPECT_TRUE(SameBits(one.data() + 19 * row, all.data() + 19 * row, row));
  }
}

// A value of a later position must not reach earlier ones, whatever it is.
TEST(MlaAttentionTest, LaterInfinitiesStayAway) {
  const MlaTestLayout layout(KvFormat::kF32, 32, 16, 32);
  const MlaTestPages pages(layout, 32, std::byte{0});
  std::vector<float> rows(48 * 20, 0.5f);
  for (size_t i = 48 * 7; i < 48 * 8; ++i) rows[i] = INFINITY;
  StoreMla(IsaPath::kReference, layout.layer, pages.table(), 0,
           {rows.data(), rows.data() + 32, 48, 48}, 0, 20);
  const std::vector<float> q(48 * 20, 1.0f);
  for (IsaPath path : AvailableIsaPaths()) {
    std::vector<float> out(32 * 20, NAN);
    MlaRun run = {q.data(), out.data(), 48, 32, 1, 0, pages.const_table(), 0.1f};
    std::vector<std::byte> scratch(MlaScratchBytes(layout.layer));
    MlaAttention(path, layout.layer, run, 0, 20, 0, 1, scratch.data());
    for (size_t i = 0; i < 7 * 32; ++i) ASSERT_EQ(out[i], 0.5f) << i;
  }
}

// Scores by hand in double precision over what the pages hold.
TEST(MlaPickTest, PicksTheBestScoresAndTheEarlierOfEqualOnes) {
  constexpr int kPositions = 300;
  constexpr int kIndex = 32;
  constexpr int kHeads = 5;
  for (KvFormat format : {KvFormat::kF32, KvFormat::kMlaFp8}) {
    MlaTestLayout layout(format, 32, 16, 32);
    layout.AddIndex(kIndex);
    const MlaTestPages pages(layout, kPositions, std::byte{0xff});
    std::vector<float> keys = Random(3, kPositions * kIndex, 1);
    // Positions 40 and 200 score alike, both best: key = query of head 0.
    const std::vector<float> q = Random(4, kHeads * kIndex, 1);
    for (int d = 0; d < kIndex; ++d) {
      keys[static_cast<size_t>(40 * kIndex + d)] = keys[static_cast<size_t>(200 * kIndex + d)] =
          20 * q[static_cast<size_t>(d)];
    }
    const float weights[kHeads] = {1, -0.5f, 0.25f, 0.5f, -1};
    std::vector<float> scores(kPositions);
    std::vector<int32_t> order(kPositions);
    std::vector<int32_t> picks(kPositions);
    std::vector<std::byte> scratch(MlaIndexScratchBytes(layout.layer, kHeads));
    for (IsaPath path : AvailableIsaPaths()) {
      StoreMlaIndex(path, layout.layer, pages.table(), 0, keys.data(), kIndex, 0, kPositions);
      const auto pick = [&](int topk, int64_t positions) {
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(37, positions), {0, 37}}) {
          if (begin >= end) continue;
          MlaIndexScores(path, layout.layer, {q.data(), weights, kHeads}, pages.const_table(),
                         begin, std::min(end, positions), scores.data(), scratch.data());
        }
        return MlaPick({topk}, positions, scores.data(), order.data(), picks.data());
      };
      ASSERT_EQ(pick(1, kPositions), 1);
      EXPECT_EQ(picks[0], 40);
      for (int p : {0, 17, 299}) {
        std::vector<float> key(kIndex);
        LoadMlaIndex(layout.layer, pages.table()[p / 32], p % 32, key.data());
        double expected = 0;
        for (int h = 0; h < kHeads; ++h) {
          double dot = 0;
          for (int d = 0; d < kIndex; ++d) {
            dot += double{q[static_cast<size_t>(h * kIndex + d)]} *
                   double{key[static_cast<size_t>(d)]};
          }
          expected += double{weights[h]} * std::max(dot, 0.0);
        }
        EXPECT_NEAR(double{scores[static_cast<size_t>(p)]}, expected, 1e-5);
      }
      ASSERT_EQ(pick(50, kPositions), 50);
      EXPECT_TRUE(std::is_sorted(picks.begin(), picks.begin() + 50));
      float least = INFINITY;
      for (int i = 0; i < 50; ++i)
        least = std::min(least, scores[static_cast<size_t>(picks[static_cast<size_t>(i)])]);
      EXPECT_EQ(std::count_if(scores.begin(), scores.end(), [&](float s) { return s > least; }),
                49);
      ASSERT_EQ(pick(50, 20), 20);  // no more than there are
      EXPECT_EQ(picks[19], 19);
    }
  }
}

// Attending all positions by name is attending all positions; later ones alone are not.
TEST(MlaPickTest, AttentionFollowsThePicks) {
  const Sequence sequence(KvFormat::kMlaFp8, 64, 16, 7, 300);
  std::vector<int32_t> all(300 * 300);
  std::vector<int32_t> counts(300);
  for (int row = 0; row < 300; ++row) {
    counts[static_cast<size_t>(row)] = row + 1;
    for (int i = 0; i <= row; ++i) all[static_cast<size_t>(row * 300 + i)] = i;
  }
  for (IsaPath path : AvailableIsaPaths()) {
    const std::vector<float> whole = sequence.AttendAll(path);
    const std::vector<float> named = sequence.AttendPicks(path, all, counts);
    EXPECT_TRUE(SameBits(named.data(), whole.data(), whole.size()));
    // In pieces too.
    std::vector<float> out_of_tiles(whole.size());
    sequence.AttendByTiles(path, sequence.PickRun(all, counts, &out_of_tiles), 299, 300);
    EXPECT_TRUE(SameBits(out_of_tiles.data() + 299 * 7 * 64, whole.data() + 299 * 7 * 64, 7 * 64));
    // One pick: its latent is the output of every head.
    std::vector<int32_t> one(300 * 300);
    for (int row = 0; row < 300; ++row) one[static_cast<size_t>(row * 300)] = row / 2;
    const std::vector<float> out = sequence.AttendPicks(path, one, std::vector<int32_t>(300, 1));
    std::vector<float> row(80);
    for (int at : {0, 7, 299}) {
      sequence.Load(at / 2, row.data());
      for (size_t i = 0; i < 7 * 64; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(at) * 7 * 64 + i], row[i % 64]) << at << " " << i;
      }
    }
  }
}

TEST(MlaStoreTest, EveryPathWritesTheSameBytes) {
  for (KvFormat format : kFormats) {
    const MlaTestLayout layout(format, 144, 48, 32);
    const int width = 192;
    std::vector<float> rows = Random(5, static_cast<size_t>(width) * 70, 1);
    // Hostile rows: zeros of both signs, infinity, NaN, subnormals, the largest float.
    std::fill_n(rows.begin(), width, -0.0f);
    rows[width + 3] = rows[width + 150] = -std::numeric_limits<float>::infinity();
    rows[2 * width + 130] = rows[2 * width + 160] = std::numeric_limits<float>::quiet_NaN();
    for (int i = 3 * width; i < 4 * width; ++i) rows[static_cast<size_t>(i)] *= 1e-40f;
    for (int i = 4 * width; i < 5 * width; ++i) rows[static_cast<size_t>(i)] *= 3e38f;
    const MlaRows source = {rows.data(), rows.data() + 144, width, width};
    const MlaTestPages expected(layout, 75, std::byte{0});
    StoreMla(IsaPath::kReference, layout.layer, expected.table(), 5, source, 0, 70);
    for (IsaPath path : AvailableIsaPaths()) {
      const MlaTestPages pages(layout, 75, std::byte{0});
      StoreMla(path, layout.layer, pages.table(), 5, source, 33, 70);
      StoreMla(path, layout.layer, pages.table(), 5, source, 0, 33);
      for (int page = 0; page < 3; ++page) {
        EXPECT_EQ(std::memcmp(pages.table()[page], expected.table()[page], layout.page_bytes), 0)
            << std::string(IsaPathName(path)) << " format " << static_cast<int>(format);
      }
    }
  }
}

// Byte positions and codes written out by hand: the layout is what two processes exchange.
TEST(MlaStoreTest, Fp8BytesLieWhereTheLayoutSays) {
  const MlaTestLayout layout(KvFormat::kMlaFp8, 32, 16, 32);
  ASSERT_EQ(layout.layer.rope_offset, 64u + 1024);
  ASSERT_EQ(layout.layer.latent_scale_offset, 64u + 1024 + 512);
  ASSERT_EQ(layout.layer.rope_scale_offset, 64u + 1024 + 512 + 64);
  ASSERT_EQ(layout.page_bytes, 64u + 1024 + 512 + 64 + 64);
  const MlaTestPages pages(layout, 32, std::byte{0});
  std::vector<float> row(48, 0.0f);
  row[9] = 3.5f;          // 448 * 2^-7
  row[32 + 4] = -254.0f;  // -127 * 2
  row[32 + 5] = 3.0f;     // 1.5 * 2: a tie, to even
  StoreMla(IsaPath::kReference, layout.layer, pages.table(), 21, {row.data(), row.data() + 32}, 0,
           1);
  const std::byte* const page = pages.table()[0];
  EXPECT_EQ(page[64 + 21 * 32 + 9], std::byte{0x7e});
  EXPECT_EQ(page[64 + 1024 + 21 * 16 + 4], std::byte{0x81});
  EXPECT_EQ(page[64 + 1024 + 21 * 16 + 5], std::byte{2});
  EXPECT_EQ(page[64 + 1024 + 512 + 21], std::byte{120});
  EXPECT_EQ(page[64 + 1024 + 512 + 64 + 42], std::byte{0x00});  // bf16 2.0 = 0x4000
  EXPECT_EQ(page[64 + 1024 + 512 + 64 + 43], std::byte{0x40});
  const auto written = [](std::byte b) { return b != std::byte{0}; };
  EXPECT_EQ(std::count_if(page, page + layout.page_bytes, written), 5);
}

// FlashMLA's 656 bytes: 512 codes, 4 float32 scales, 64 bf16.
TEST(MlaStoreTest, TilesAreFlashMlasRow) {
  const MlaTestLayout layout(KvFormat::kMlaFp8Tiles, 512, 64, 64);
  ASSERT_EQ(MlaTilesRowBytes(512, 64), 656);
  ASSERT_EQ(layout.page_bytes, 64u + 64 * 656);
  const MlaTestPages pages(layout, 64, std::byte{0});
  std::vector<float> row(576, 0.0f);
  row[130] = -896.0f;  // tile 1: scale 2
  row[131] = 1.0f;
  row[512 + 3] = 1.5f;
  StoreMla(BestIsaPath(), layout.layer, pages.table(), 3, {row.data(), row.data() + 512}, 0, 1);
  const std::byte* const at = pages.table()[0] + 64 + 3 * 656;
  EXPECT_EQ(at[130], std::byte{0xfe});
  EXPECT_EQ(at[131], std::byte{0x30});  // 0.5
  const auto scale = [&](int tile) {
    float value;
    std::memcpy(&value, at + 512 + 4 * tile, 4);
    return value;
  };
  EXPECT_EQ(scale(0), 1.0f);  // all zero
  EXPECT_EQ(scale(1), 2.0f);
  EXPECT_EQ(at[528 + 7], std::byte{0x3f});  // bf16 1.5 = 0x3fc0
  EXPECT_EQ(at[528 + 6], std::byte{0xc0});
}

}  // namespace
}  // namespace sluice::kernels
