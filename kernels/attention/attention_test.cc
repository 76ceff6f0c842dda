#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/kv_store/kv_store.h"
#include "kernels/kv_store/kv_test_pages.h"

namespace sluice::kernels {
namespace {

// kGqaFp8 is kGqaFp8c without a centre; the tests of tiles and sink rows take it.
constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kGqaFp8c,
                                 KvFormat::kGqaInt8c};

// As an engine lays a format out.
int SinkRowsOf(KvFormat format) { return IsCentred(format) ? 1 : 0; }

struct Shape {
  int kv_heads;
  int group;  // query heads per KV head
  int head_dim;
  int page_tokens;
};

// One sequence with its keys and values stored, centred where the format is.
class Sequence {
 public:
  Sequence(KvFormat format, Shape shape, int tokens)
      : Sequence(format, shape, tokens, SinkRowsOf(format)) {}
  Sequence(KvFormat format, Shape shape, int tokens, int sink_rows)
      : shape_(shape),
        tokens_(tokens),
        heads_(shape.kv_heads * shape.group),
        layer_(TestLayer(format, shape.kv_heads, shape.head_dim, shape.page_tokens, &page_bytes_)),
        // Unwritten bytes are NaN in every format: an attended slot that is not ours spoils the
        // result.
        pages_((layer_.sink_rows = sink_rows, layer_), page_bytes_, tokens, std::byte{0xff}),
        centres_(Random(4, static_cast<size_t>(2 * shape.kv_heads * shape.head_dim), 0.5)),
        q_(Random(1, static_cast<size_t>(tokens * heads_ * shape.head_dim), 3)) {
    const int width = shape.kv_heads * shape.head_dim;
    if (IsCentred(format)) {
      layer_.k_centre = centres_.data();
      layer_.v_centre = centres_.data() + width;
    }
    std::vector<float> k = Random(2, static_cast<size_t>(tokens * width), 1);
    const std::vector<float> v = Random(3, static_cast<size_t>(tokens * width), 1);
    // A rising key gives later tiles new maxima, so merging has work to do.
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < width; ++i)
        k[static_cast<size_t>(t * width + i)] *= 1.0f + static_cast<float>(t) / 200;
    }
    StoreKv(IsaPath::kReference, layer_, pages_.table(), 0, {k.data(), v.data(), width, width}, 0,
            tokens);
  }

  // Attends rows [begin, end) given as one run that starts at `begin`, for KV heads [kv_begin,
  // kv_end).
  void Attend(IsaPath path, int begin, int end, int kv_begin, int kv_end,
              std::vector<float>* out) const {
    const AttentionRun run = Run(begin, out);
    std::vector<std::byte> scratch(AttentionScratchBytes(layer_, heads_));
    Attention(path, layer_, run, 0, end - begin, kv_begin, kv_end, scratch.data());
  }

  std::vector<float> AttendAll(IsaPath path) const {
    std::vector<float> out(q_.size(), NAN);
    Attend(path, 0, tokens_, 0, shape_.kv_heads, &out);
    return out;
  }

  std::vector<float> AttendByTiles(IsaPath path, int row) const {
    std::vector<float> out(q_.size(), NAN);
    const AttentionRun run = Run(0, &out);
    std::vector<std::byte> scratch(AttentionScratchBytes(layer_, heads_));
    const int tiles = AttentionTiles(layer_, row);
    const size_t partial = AttentionPartialFloats(layer_, heads_);
    std::vector<float> partials(partial * static_cast<size_t>(tiles));
    for (int head = 0; head < shape_.kv_heads; ++head) {
      // Last tile first: partials do not depend on one another.
      for (int tile = tiles - 1; tile >= 0; --tile) {
        AttentionPartials(path, layer_, run, row, head, tile, tile + 1,
                          partials.data() + partial * static_cast<size_t>(tile), scratch.data());
      }
      AttentionMerge(path, layer_, run, row, head, partials.data());
    }
    return out;
  }

  // Textbook softmax attention in double precision over the values that the pages hold.
  std::vector<double> Exact(int row) const {
    const int dim = shape_.head_dim;
    const auto width = static_cast<size_t>(shape_.kv_heads * dim);
    std::vector<float> k(width * static_cast<size_t>(row + 1));
    std::vector<float> v(k.size());
    for (int t = 0; t <= row; ++t) {
      const size_t at = width * static_cast<size_t>(t);
      LoadKv(layer_, pages_.const_table(), t, k.data() + at, v.data() + at);
    }
    std::vector<double> out(static_cast<size_t>(heads_ * dim), 0.0);
    for (int h = 0; h < heads_; ++h) {
      const auto column = static_cast<size_t>(h / shape_.group * dim);
      std::vector<double> scores;
      double max = -INFINITY;
      for (int t = 0; t <= row; ++t) {
        double dot = 0;
        for (int d = 0; d < dim; ++d) {
          dot += static_cast<double>(Q(row, h, d)) *
                 static_cast<double>(
                     k[width * static_cast<size_t>(t) + column + static_cast<size_t>(d)]);
        }
        scores.push_back(dot * static_cast<double>(Scale()));
        max = std::max(max, scores.back());
      }
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      for (int t = 0; t <= row; ++t) {
        for (int d = 0; d < dim; ++d) {
          out[static_cast<size_t>(h * dim + d)] +=
              scores[static_cast<size_t>(t)] / sum *
              static_cast<double>(
                  v[width * static_cast<size_t>(t) + column + static_cast<size_t>(d)]);
        }
      }
    }
    return out;
  }

  size_t row_floats() const { return static_cast<size_t>(heads_ * shape_.head_dim); }
  int tokens() const { return tokens_; }
  int kv_heads() const { return shape_.kv_heads; }

 private:
  static std::vector<float> Random(uint64_t seed, size_t n, double spread) {
    SeededRandom random(seed);
    std::vector<float> values(n);
    for (float& value : values) value = static_cast<float>((random.Unit() * 2 - 1) * spread);
    return values;
  }

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  float Q(int row, int head, int d) const {
    return q_[static_cast<size_t>((row * heads_ + head) * shape_.head_dim + d)];
  }

  AttentionRun Run(int first, std::vector<float>* out) const {
    const int64_t width = static_cast<int64_t>(row_floats());
    AttentionRun run;
    run.q = q_.data() + first * width;
    run.out = out->data() + first * width;
    run.q_stride = run.out_stride = width;
    run.heads = heads_;
    run.first_position = first;
    run.pages = pages_.const_table();
    run.scale = Scale();
    return run;
  }

  Shape shape_;
  int tokens_;
  int heads_;
  size_t page_bytes_ = 0;
  KvLayerView layer_;
  TestPages pages_;
  std::vector<float> centres_;  // K, then V
  std::vector<float> q_;
};

void ExpectNear(const Sequence& sequence, const std::vector<float>& out, int row,
                const std::string& what) {
  const std::vector<double> exact = sequence.Exact(row);
  const size_t start = sequence.row_floats() * static_cast<size_t>(row);
  for (size_t i = 0; i < exact.size(); ++i) {
    // Scores reach about 30: float32 leaves 30 * head_dim * 2^-24 / 8 in each, and values are
    // below 1.
    ASSERT_NEAR(static_cast<double>(out[start + i]), exact[i], 4e-5)
        << what << " row " << row << " at " << i;
  }
}

TEST(AttentionTest, EveryPathAgreesWithDoublePrecision) {
  const Shape shapes[] = {{2, 3, 64, 32},  {1, 1, 32, 16}, {2, 2, 48, 32},
                          {1, 8, 128, 64}, {3, 5, 16, 48}, {1, 70, 80, 32}};
  for (const Shape& shape : shapes) {
    for (KvFormat format : kFormats) {
      const Sequence sequence(format, shape, 270);
      for (IsaPath path : AvailableIsaPaths()) {
        const std::string what = std::string(IsaPathName(path)) + " format " +
                                 std::to_string(static_cast<int>(format)) + " dim " +
                                 std::to_string(shape.head_dim);
        const std::vector<float> out = sequence.AttendAll(path);
        for (int row : {0, 1, 15, 16, 31, 32, 63, 64, 255, 256, 269}) {
          ExpectNear(sequence, out, row, what);
        }
      }
    }
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b, size_t begin, size_t end) {
  return std::memcmp(a.data() + begin, b.data() + begin, (end - begin) * sizeof(float)) == 0;
}

TEST(AttentionTest, BitsDoNotDependOnChunksOrHeadRanges) {
  const Shape shapes[] = {{2, 3, 64, 32}, {1, 1, 48, 32}, {1, 8, 32, 64}};
  const int tokens = 2 * kAttentionTile + 50;
  for (const Shape& shape : shapes) {
    for (KvFormat format : kFormats) {
      const Sequence sequence(format, shape, tokens);
      for (IsaPath path : AvailableIsaPaths()) {
        const std::vector<float> whole = sequence.AttendAll(path);
        for (int chunk : {1, 7, 32, 33, 200}) {
          // The reference is slow, and has one loop for all shapes and formats.
          if (path == IsaPath::kReference && (chunk != 7 || format != KvFormat::kBf16)) continue;
          std::vector<float> pieces(whole.size(), NAN);
          for (int begin = 0; begin < tokens; begin += chunk) {
            for (int head = 0; head < shape.kv_heads; ++head) {
              sequence.Attend(path, begin, std::min(tokens, begin + chunk), head, head + 1,
                              &pieces);
            }
          }
          EXPECT_TRUE(SameBits(whole, pieces, 0, whole.size()))
              << std::string(IsaPathName(path)) << " format " << static_cast<int>(format)
              << " chunk " << chunk;
        }
      }
    }
  }
}

TEST(AttentionTest, TilesOfOneRowMergeToTheSameBits) {
  for (KvFormat format : {KvFormat::kGqaFp8, KvFormat::kGqaFp8c, KvFormat::kGqaInt8c}) {
    const Sequence sequence(format, {2, 3, 64, 32}, 2 * kAttentionTile + 90);
    for (IsaPath path : AvailableIsaPaths()) {
      const std::vector<float> whole = sequence.AttendAll(path);
      for (int row : {0, 100, 255, 256, 511, 512, 600}) {
        const std::vector<float> tiled = sequence.AttendByTiles(path, row);
        const size_t begin = sequence.row_floats() * static_cast<size_t>(row);
        EXPECT_TRUE(SameBits(whole, tiled, begin, begin + sequence.row_floats()))
            << std::string(IsaPathName(path)) << " row " << row;
      }
    }
  }
}

TEST(AttentionTest, SinkRowsShiftSlotsAndAreNotAttended) {
  for (int sink_rows : {1, 70}) {
    for (KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kGqaFp8}) {
      const Sequence sequence(format, {2, 3, 32, 32}, 400, sink_rows);
      for (IsaPath path : AvailableIsaPaths()) {
        const std::vector<float> out = sequence.AttendAll(path);
        for (int row : {0, 14, 15, 16, 185, 254, 255, 256, 399}) {
          ExpectNear(sequence, out, row, std::string(IsaPathName(path)));
        }
      }
    }
  }
}

// A sequence short enough for the first token to weigh much: without its second term, e4m3 would
// miss the tolerance by far. Rows alone and in a block, as the register tiles differ.
TEST(AttentionTest, TheSecondTermOfTheFirstTokenIsAttended) {
  for (KvFormat format : {KvFormat::kGqaFp8c, KvFormat::kGqaInt8c}) {
    for (int sink_rows : {0, 1}) {
      for (int group : {1, 3, 8, 9}) {
        const Sequence sequence(format, {1, group, 64, 16}, 20, sink_rows);
        for (IsaPath path : AvailableIsaPaths()) {
          const std::vector<float> whole = sequence.AttendAll(path);
          std::vector<float> single(whole.size(), NAN);
          for (int row = 0; row < sequence.tokens(); ++row) {
            sequence.Attend(path, row, row + 1, 0, 1, &single);
            ExpectNear(sequence, whole, row, std::string(IsaPathName(path)));
          }
          EXPECT_TRUE(SameBits(whole, single, 0, whole.size())) << std::string(IsaPathName(path));
        }
      }
    }
  }
}

TEST(AttentionDeathTest, RefusesShapesItCannotRead) {
  KvLayerView layer;
  layer.head_dim = 20;
  layer.kv_heads = 1;
  layer.page_tokens = 32;
  AttentionRun run;
  run.heads = 1;
  EXPECT_DEATH(Attention(IsaPath::kReference, layer, run, 0, 1, 0, 1, nullptr), "head_dim 20");
}

}  // namespace
}  // namespace sluice::kernels
