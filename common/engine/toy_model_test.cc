#include "engine/toy_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/engine_test_support.h"
#include "kernels/kv_store/kv_store.h"

namespace sluice::engine {
namespace {

constexpr int kPrompt = 70;  // two full pages and a part

// One sequence on raw pages.
class Bench {
 public:
  explicit Bench(ToyModelOptions options = {}) {
    auto made = CreateToyModel(options);
    SLUICE_CHECK(made.ok()) << made.status();
    model_ = *std::move(made);
    const kv::PageLayout& layout = model_->info().layout;
    memory_ = std::make_unique<PoolMemory>(size_t{4} * layout.page_bytes());
    std::fill(memory_->span().begin(), memory_->span().end(), uint8_t{0});
    for (size_t i = 0; i < 4; ++i)
      pages.push_back(memory_->span().data() + i * layout.page_bytes());
  }

  std::vector<float> Forward(absl::Span<const TokenId> tokens, int first,
                             LogitsWanted wanted = LogitsWanted::kLast,
                             ForwardHooks* hooks = nullptr) {
    Segment segment;
    segment.tokens = tokens;
    segment.first_position = first;
    segment.pages = pages;
    segment.logits = wanted;
    const size_t rows = wanted == LogitsWanted::kAll    ? tokens.size()
                        : wanted == LogitsWanted::kLast ? 1
                                                        : 0;
    std::vector<float> logits(rows * kToyVocabulary);
    status = model_->Forward({segment}, hooks, absl::MakeSpan(logits));
    return logits;
  }
  // Logits of position kPrompt from the pages as they are.
  std::vector<float> Next() { return Forward({65}, kPrompt); }

  ModelRunner& model() { return *model_; }
  std::vector<uint8_t*> pages;
  absl::Status status;

 private:
  std::unique_ptr<ModelRunner> model_;
  std::unique_ptr<PoolMemory> memory_;
};

class ToyModelFormats : public testing::TestWithParam<kernels::KvFormat> {
 protected:
  ToyModelOptions Options() const {
    ToyModelOptions options;
    options.layout = ToyLayoutSpec(GetParam());
    options.layout.kv_heads = 2;
    options.layout.head_dim = 32;
    return options;
  }
};

TEST_P(ToyModelFormats, EveryByteOfTheContextMatters) {
  Bench bench(Options());
  bench.Forward(RandomPrompt(1, kPrompt), 0);
  const std::vector<float> expected = bench.Next();
  EXPECT_EQ(bench.Next(), expected);
  const kv::PageLayout& layout = bench.model().info().layout;
  // Full pages: every byte behind the header.
  for (size_t page = 0; page < 2; ++page) {
    for (uint32_t i = kv::kPageHeaderBytes; i < layout.page_bytes(); i += 37) {
      bench.pages[page][i] ^= 1;
      EXPECT_NE(bench.Next(), expected) << "byte " << i << " of page " << page;
      bench.pages[page][i] ^= 1;
    }
  }
  EXPECT_EQ(bench.Next(), expected);
}

TEST_P(ToyModelFormats, EverySlotOfTheLastPageMatters) {
  Bench bench(Options());
  bench.Forward(RandomPrompt(1, kPrompt), 0);
  const std::vector<float> expected = bench.Next();
  const kv::PageLayout& layout = bench.model().info().layout;
  const size_t row_floats = 64;
  std::vector<float> k(row_floats), v(row_floats);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    kernels::KvLayerView view = layout.LayerView(layer);
    const int slots = (kPrompt + view.sink_rows) % 32;
    view.sink_rows = 0;  // a page in the middle, addressed by slots
    for (int slot = 0; slot < slots; ++slot) {
      auto* page = reinterpret_cast<std::byte*>(bench.pages[2]);
      kernels::LoadKvSlot(view, page, slot, k.data(), v.data());
      std::vector<float> changed = v;
      changed[row_floats - 1] = -changed[row_floats - 1];
      kernels::KvRows rows{k.data(), changed.data(), 64, 64};
      kernels::StoreKv(kernels::IsaPath::kReference, view, &page, slot, rows, 0, 1);
      EXPECT_NE(bench.Next(), expected) << "layer " << layer << " slot " << slot;
      rows.v = v.data();
      kernels::StoreKv(kernels::IsaPath::kReference, view, &page, slot, rows, 0, 1);
    }
  }
  EXPECT_EQ(bench.Next(), expected) << "values do not survive a round trip";
}

TEST_P(ToyModelFormats, SwappedPagesMatter) {
  Bench bench(Options());
  bench.Forward(RandomPrompt(1, kPrompt), 0);
  const std::vector<float> expected = bench.Next();
  std::swap(bench.pages[0], bench.pages[1]);
  EXPECT_NE(bench.Next(), expected);
}

TEST_P(ToyModelFormats, ScalesDifferBetweenTokens) {
  Bench bench(Options());
  bench.Forward(RandomPrompt(1, 32), 0);
  const kernels::KvLayerView view = bench.model().info().layout.LayerView(1);
  if (kernels::KvCodeOf(view.format) != kernels::KvCode::kE4m3) return;
  std::set<uint8_t> scales;
  for (uint32_t i = 0; i < 64; ++i) scales.insert(bench.pages[0][view.k_scale_offset + i]);
  EXPECT_GT(scales.size(), 4u);
}

INSTANTIATE_TEST_SUITE_P(Formats, ToyModelFormats,
                         testing::Values(kernels::KvFormat::kGqaFp8, kernels::KvFormat::kGqaFp8c,
                                         kernels::KvFormat::kBf16, kernels::KvFormat::kF32));

TEST(ToyModel, TokensAndPositionsMatter) {
  std::set<std::vector<float>> rows;
  for (TokenId token : {1, 2, kToyEos}) {
    Bench bench;
    rows.insert(bench.Forward({token}, 0));
    bench.Forward({1}, 0);
    rows.insert(bench.Forward({token}, 1));
  }
  EXPECT_EQ(rows.size(), 6u);
}

TEST(ToyModel, OtherSaltOtherModel) {
  ToyModelOptions salted;
  salted.salt = 1;
  Bench a;
  Bench b(salted);
  EXPECT_NE(a.Forward({1}, 0), b.Forward({1}, 0));
  EXPECT_NE(a.model().info().numerics_id, b.model().info().numerics_id);
  EXPECT_NE(a.model().info().model_digest, b.model().info().model_digest);
  ToyModelOptions flavoured;
  flavoured.flavour = 1;
  Bench d(flavoured);
  EXPECT_NE(a.Forward({1}, 0), d.Forward({1}, 0));
  EXPECT_NE(a.model().info().numerics_id, d.model().info().numerics_id);
  EXPECT_EQ(a.model().info().model_digest, d.model().info().model_digest);
  ToyModelOptions other_layout;
  other_layout.layout = ToyLayoutSpec(kernels::KvFormat::kBf16);
  Bench c(other_layout);
  EXPECT_NE(a.model().info().numerics_id, c.model().info().numerics_id);
  EXPECT_EQ(a.model().info().model_digest, c.model().info().model_digest);
}

TEST(ToyModel, RowsAreAsWanted) {
  const std::vector<TokenId> tokens = RandomPrompt(3, 40);
  Bench whole;
  const std::vector<float> all = whole.Forward(tokens, 0, LogitsWanted::kAll);
  Bench single;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float> row = single.Forward({tokens[i]}, static_cast<int>(i));
    EXPECT_TRUE(std::equal(row.begin(), row.end(),
                           all.begin() + static_cast<std::ptrdiff_t>(i * kToyVocabulary)))
        << "row " << i;
  }
  EXPECT_TRUE(whole.Forward(tokens, 0, LogitsWanted::kNone).empty());
}

TEST(ToyModel, EosComesAboutAsOftenAsAsked) {
  for (uint32_t one_in : {0u, 8u}) {
    ToyModelOptions options;
    options.eos_one_in = one_in;
    Bench bench(options);
    int leads = 0;
    for (TokenId token = 0; token < 256; ++token) {
      const std::vector<float> row = bench.Forward({token}, 0);
      leads += std::max_element(row.begin(), row.end()) - row.begin() == kToyEos ? 1 : 0;
    }
    if (one_in == 0) {
      EXPECT_EQ(leads, 0);
    } else {
      EXPECT_GT(leads, 16);
      EXPECT_LT(leads, 64);
    }
  }
}

class CountingHooks final : public ForwardHooks {
 public:
  explicit CountingHooks(int cancel_after) : cancel_after_(cancel_after) {}
  void LayersDone(int begin, int end) override {
    EXPECT_EQ(begin, done);
    done = end;
  }
  bool Cancelled() override { return done >= cancel_after_; }
  int done = 0;

 private:
  const int cancel_after_;
};

TEST(ToyModel, ReportsLayersAndStopsBetweenThem) {
  ToyModelOptions options;
  options.layout.layers = 4;
  Bench bench(options);
  CountingHooks all(9);
  bench.Forward({1}, 0, LogitsWanted::kLast, &all);
  EXPECT_TRUE(bench.status.ok());
  EXPECT_EQ(all.done, 4);
  CountingHooks two(2);
  bench.Forward({1}, 0, LogitsWanted::kLast, &two);
  EXPECT_TRUE(absl::IsCancelled(bench.status));
  EXPECT_EQ(two.done, 2);
}

TEST(ToyModel, RefusesImpossibleOptions) {
  ToyModelOptions options;
  options.context_tokens = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(CreateToyModel(options).status()));
  options = {};
  options.layout.page_tokens = 17;
  EXPECT_TRUE(absl::IsInvalidArgument(CreateToyModel(options).status()));
}

}  // namespace
}  // namespace sluice::engine
