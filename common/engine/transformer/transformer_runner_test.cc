// What TransformerRunner tells and refuses: info, hooks, counters, errors.
#include "engine/transformer/transformer_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/transformer/runner_test_support.h"

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
  EXPECT_THAT(std::string(Run(std::vector<TokenId>(65, 1), LogitsWanted::kLast, 1).message()),
              HasSubstr("only 2 pages"));
}

}  // namespace
}  // namespace sluice::engine
