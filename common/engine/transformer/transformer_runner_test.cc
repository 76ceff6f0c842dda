// What TransformerRunner tells and refuses: info, hooks, counters, errors.
#include "engine/transformer/transformer_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/transformer/runner_test_support.h"
#include "kernels/kv_store/kv_store.h"

namespace sluice::engine {
namespace {

using kernels::IsaPath;
using kernels::KvFormat;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LoadedModel;
using testing::PagedSequence;

std::string TinyLlama() { return absl::StrCat(SLUICE_TEST_DATA, "/golden/models/tiny-llama"); }

class TransformerRunnerTest : public ::testing::Test {
 protected:
  TransformerRunnerTest()
      : model_(testing::Load(TinyLlama(), {.path = kernels::BestIsaPath()})),
        sequence_(model_.runner->info().layout, 64) {}

  absl::Status Run(absl::Span<const TokenId> tokens, LogitsWanted wanted, size_t rows,
                   ForwardHooks* hooks = nullptr) {
    const Segment segment = {tokens, 0, sequence_.pages(), wanted};
    logits_.assign(rows * model_.vocabulary(), 0);
    return model_.runner->Forward({&segment, 1}, hooks, absl::MakeSpan(logits_));
  }

  LoadedModel model_;
  PagedSequence sequence_;
  std::vector<float> logits_;
};

TEST_F(TransformerRunnerTest, InfoComesFromTheFiles) {
  const ModelInfo& info = model_.runner->info();
  EXPECT_EQ(info.name, "tiny-llama");
  EXPECT_EQ(info.vocabulary, 320);
  EXPECT_EQ(info.context_tokens, 4096);
  EXPECT_EQ(info.layers, 3);
  EXPECT_THAT(info.eos_tokens, ElementsAre(1));
  EXPECT_EQ(info.layout.spec().kv_heads, 2u);
  EXPECT_FALSE(info.model_digest.IsZero());
}

TEST_F(TransformerRunnerTest, NumericsIdFollowsPathAndLayout) {
  const Id128 base = model_.runner->info().numerics_id;
  EXPECT_EQ(testing::Load(TinyLlama(), {.path = kernels::BestIsaPath()}).runner->info().numerics_id,
            base);
  std::vector<Id128> ids = {base};
  ids.push_back(
      testing::Load(TinyLlama(), {.path = kernels::BestIsaPath(), .kv_format = KvFormat::kBf16})
          .runner->info()
          .numerics_id);
  ids.push_back(testing::Load(TinyLlama(), {.path = kernels::BestIsaPath(), .page_tokens = 64})
                    .runner->info()
                    .numerics_id);
  if (kernels::BestIsaPath() != IsaPath::kReference) {
    ids.push_back(
        testing::Load(TinyLlama(), {.path = IsaPath::kReference}).runner->info().numerics_id);
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST_F(TransformerRunnerTest, TheCentreIsTheMeanOfKeysAndValues) {
  LoadedModel exact = testing::Load(TinyLlama(), {.kv_format = KvFormat::kF32});
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 50; ++i) tokens.push_back((i * 37 + 5) % 320);
  const auto centre = CalibrateKvCentre(*exact.runner, tokens);
  ASSERT_TRUE(centre.ok()) << centre.status();
  const kv::PageLayout& layout = exact.runner->info().layout;
  ASSERT_EQ(centre->layers, 3u);
  ASSERT_EQ(centre->kv_heads, layout.spec().kv_heads);
  ASSERT_EQ(centre->head_dim, layout.spec().head_dim);

  const PagedSequence sequence(layout, 50);
  const Segment segment = {tokens, 0, sequence.pages(), LogitsWanted::kNone};
  ASSERT_TRUE(exact.runner->Forward({&segment, 1}, nullptr, {}).ok());
  std::vector<const std::byte*> pages;
  for (uint8_t* page : sequence.pages()) pages.push_back(reinterpret_cast<std::byte*>(page));
  const size_t width = centre->kv_heads * centre->head_dim;
  std::vector<float> k(width), v(width);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    std::vector<double> k_mean(width), v_mean(width);
    for (int position = 4; position < 50; ++position) {
      kernels::LoadKv(layout.LayerView(layer), pages.data(), position, k.data(), v.data());
      for (size_t i = 0; i < width; ++i) k_mean[i] += static_cast<double>(k[i]) / 46;
      for (size_t i = 0; i < width; ++i) v_mean[i] += static_cast<double>(v[i]) / 46;
    }
    for (size_t i = 0; i < width; ++i) {  // bf16 keeps 8 bits
      ASSERT_NEAR(centre->k[layer * width + i], k_mean[i], std::abs(k_mean[i]) / 250 + 1e-7);
      ASSERT_NEAR(centre->v[layer * width + i], v_mean[i], std::abs(v_mean[i]) / 250 + 1e-7);
    }
  }
}

TEST_F(TransformerRunnerTest, CalibrationNeedsF32PagesAndTokens) {
  EXPECT_TRUE(absl::IsFailedPrecondition(
      CalibrateKvCentre(*model_.runner, std::vector<TokenId>(9, 5)).status()));
  LoadedModel exact = testing::Load(TinyLlama(), {.kv_format = KvFormat::kF32});
  for (const std::vector<TokenId>& tokens :
       {std::vector<TokenId>(4, 5), std::vector<TokenId>(4097, 5), std::vector<TokenId>(9, 320)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CalibrateKvCentre(*exact.runner, tokens).status()));
  }
}

// Workers with other centres, or without one, would attend other values: their pages differ.
TEST_F(TransformerRunnerTest, TheCentreIsPartOfLayoutAndNumerics) {
  const model::KvCentre centre = testing::CentreOf(TinyLlama(), 1);
  const auto info = [&](KvFormat format, const model::KvCentre& used) {
    return testing::Load(TinyLlama(), {.kv_format = format, .centre = used}).runner->info();
  };
  const ModelInfo base = info(KvFormat::kGqaFp8c, centre);
  EXPECT_EQ(base.layout.spec().sink_rows, 1u);
  EXPECT_EQ(base.layout.spec().centre_digest, centre.Digest());
  EXPECT_EQ(info(KvFormat::kGqaFp8c, centre).numerics_id, base.numerics_id);
  for (const model::KvCentre& other : {testing::CentreOf(TinyLlama(), 2), model::KvCentre()}) {
    const ModelInfo changed = info(KvFormat::kGqaFp8c, other);
    EXPECT_NE(changed.layout.hash(), base.layout.hash());
    EXPECT_NE(changed.numerics_id, base.numerics_id);
  }
  EXPECT_EQ(info(KvFormat::kGqaFp8, centre).layout.spec().centre_digest, "");

  model::KvCentre small = centre;
  small.layers = 2;
  const auto files = model::ModelFiles::Open(TinyLlama());
  const auto made = TransformerRunner::Create(
      **files, {.kv_format = KvFormat::kGqaFp8c, .centre = small}, *model_.pool);
  EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
}

TEST_F(TransformerRunnerTest, WeightsAreReadOncePerPassWhateverTheBatch) {
  ASSERT_TRUE(Run(std::vector<TokenId>{5}, LogitsWanted::kLast, 1).ok());
  const uint64_t one = model_.runner->weight_bytes_read();
  EXPECT_GT(one, 800'000u);  // 968,448 bytes of BF16 tensors, nearly all of them matrices
  EXPECT_LT(one, 1'100'000u);
  ASSERT_TRUE(Run(std::vector<TokenId>(64, 5), LogitsWanted::kAll, 64).ok());
  EXPECT_EQ(model_.runner->weight_bytes_read(), 2 * one);
  ASSERT_TRUE(Run(std::vector<TokenId>{5}, LogitsWanted::kNone, 0).ok());
  EXPECT_LT(model_.runner->weight_bytes_read(), 3 * one);  // no output matrix
}

// Notes the layers and can cancel before one of them.
class RecordingHooks : public ForwardHooks {
 public:
  explicit RecordingHooks(int cancel_at) : cancel_at_(cancel_at) {}
  void LayersDone(int begin, int end) override {
    EXPECT_EQ(end, begin + 1);
    done.push_back(begin);
  }
  bool Cancelled() override { return asked_++ == cancel_at_; }
  std::vector<int> done;

 private:
  const int cancel_at_;
  int asked_ = 0;
};

TEST_F(TransformerRunnerTest, HooksSeeEveryLayerOnce) {
  RecordingHooks hooks(-1);
  ASSERT_TRUE(Run(std::vector<TokenId>{1, 2, 3}, LogitsWanted::kLast, 1, &hooks).ok());
  EXPECT_THAT(hooks.done, ElementsAre(0, 1, 2));
}

TEST_F(TransformerRunnerTest, CancelStopsBetweenLayersAndTheRunnerGoesOn) {
  ASSERT_TRUE(Run(std::vector<TokenId>{1, 2, 3}, LogitsWanted::kLast, 1).ok());
  const std::vector<float> before = logits_;
  RecordingHooks hooks(1);
  const absl::Status status = Run(std::vector<TokenId>{4, 5, 6}, LogitsWanted::kLast, 1, &hooks);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(hooks.done, ElementsAre(0));
  ASSERT_TRUE(Run(std::vector<TokenId>{1, 2, 3}, LogitsWanted::kLast, 1).ok());
  EXPECT_TRUE(testing::SameBits(logits_, before));
}

TEST_F(TransformerRunnerTest, KvIsWrittenOnlyInTheSlotsOfTheTokens) {
  ASSERT_TRUE(Run(std::vector<TokenId>{1, 2, 3}, LogitsWanted::kNone, 0).ok());
  const kv::PageLayout& layout = model_.runner->info().layout;
  const std::vector<uint8_t> second(sequence_.pages()[1],
                                    sequence_.pages()[1] + layout.page_bytes());
  EXPECT_EQ(std::count(second.begin(), second.end(), 0), layout.page_bytes());
  const uint8_t* header = sequence_.pages()[0];
  EXPECT_EQ(std::count(header, header + kv::kPageHeaderBytes, 0), kv::kPageHeaderBytes);
}

TEST_F(TransformerRunnerTest, BadBatchesAreErrorsNotCrashes) {
  EXPECT_THAT(std::string(Run({}, LogitsWanted::kNone, 0).message()), HasSubstr("without tokens"));
  EXPECT_THAT(std::string(Run(std::vector<TokenId>{320}, LogitsWanted::kLast, 1).message()),
              HasSubstr("token 320"));
  EXPECT_THAT(std::string(Run(std::vector<TokenId>{-1}, LogitsWanted::kLast, 1).message()),
              HasSubstr("token -1"));
  EXPECT_THAT(std::string(Run(std::vector<TokenId>{1}, LogitsWanted::kLast, 2).message()),
              HasSubstr("wanted are 1 rows"));
  EXPECT_THAT(std::string(Run(std::vector<TokenId>(96, 1), LogitsWanted::kLast, 1).message()),
              HasSubstr("only 3 pages"));
}

}  // namespace
}  // namespace sluice::engine
