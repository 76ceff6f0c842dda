// The engine's promise with real models: how a sequence is cut, batched, cached or preempted
// changes neither its tokens nor the hash of the logits behind any of them.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/engine_test_support.h"
#include "engine/transformer/runner_test_support.h"

namespace sluice::engine {
namespace {

// Longer than two attention tiles, and neither its last tile nor its last page is full.
constexpr size_t kLongPrompt = 2 * 256 + 75;
constexpr uint32_t kOutput = 12;

std::vector<std::string> ModelPaths() {
  std::vector<std::string> paths = {
      absl::StrCat(SLUICE_TEST_DATA, "/golden/models/tiny-llama"),
      absl::StrCat(SLUICE_TEST_DATA, "/golden/gguf/tiny-qwen3.gguf"),
      absl::StrCat(SLUICE_TEST_DATA, "/golden/models/tiny-kimi-k2-fp8")};
  if (const std::string model = SLUICE_TEST_MODEL; !model.empty()) paths.push_back(model);
  return paths;
}

// Odd numbers are greedy, even ones seeded.
SequenceSpec Spec(uint64_t number, size_t prompt_tokens, uint32_t output = kOutput) {
  SequenceSpec spec = LocalSpec(number, RandomPrompt(number, prompt_tokens), output);
  if (number % 2 == 0) {
    spec.sampling.temperature = 1.0f;
    spec.sampling.top_p = 0.95f;
    spec.sampling.seed = number;
  }
  return spec;
}

class TransformerEngine : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<TestEngine> Make(uint32_t step_tokens_max = 4096, size_t pages = 256) {
    TestEngineOptions options;
    options.engine.step_tokens_max = step_tokens_max;
    options.pages = pages;
    return std::make_unique<TestEngine>(options, model_.runner.get());
  }
  static void ExpectSame(const Record& got, const Record& expected) {
    EXPECT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.hashes, expected.hashes);
  }

  testing::LoadedModel model_ = testing::Load(
      GetParam(),
      testing::WithCentre(GetParam(), {.path = kernels::BestIsaPath(), .page_tokens = 32}));
};

TEST_P(TransformerEngine, ChunksChangeNoBit) {
  const auto whole = Make();
  const Record greedy = whole->Run(Spec(1, kLongPrompt));
  const Record seeded = whole->Run(Spec(2, kLongPrompt));
  EXPECT_EQ(greedy.hashes.size(), kOutput);
  EXPECT_NE(greedy.hashes, seeded.hashes);
  for (uint32_t chunk : {1u, 7u, 32u, 33u, 200u}) {
    SCOPED_TRACE(absl::StrCat("chunks of ", chunk));
    const auto cut = Make(chunk);
    ExpectSame(cut->Run(Spec(1, kLongPrompt)), greedy);
    ExpectSame(cut->Run(Spec(2, kLongPrompt)), seeded);
  }
}

TEST_P(TransformerEngine, CompanyChangesNoBit) {
  constexpr std::array<size_t, 8> kLengths = {1, 7, 31, 32, 33, 64, 200, kLongPrompt};
  const auto alone = Make();
  const auto together = Make(/*step_tokens_max=*/100);
  std::vector<SequenceSpec> specs;
  for (uint64_t i = 1; i <= 16; ++i) specs.push_back(Spec(i, kLengths[i % kLengths.size()]));
  for (const SequenceSpec& spec : specs) ASSERT_TRUE(together->Submit(spec).ok());
  together->Drain();
  for (const SequenceSpec& spec : specs) {
    SCOPED_TRACE(absl::StrCat("sequence ", spec.id.value()));
    ExpectSame(together->record(spec.id.value()), alone->Run(spec));
  }
}

TEST_P(TransformerEngine, TheCacheChangesNoBit) {
  const auto engine = Make();
  for (uint64_t number : {1u, 2u}) {
    SequenceSpec spec = Spec(number, kLongPrompt);
    spec.domain = TestDomain();
    const Record cold = engine->Run(spec);
    EXPECT_EQ(cold.cached_tokens, 0u);
    spec.id = SequenceId(10 + number);
    const Record warm = engine->Run(spec);
    EXPECT_GT(warm.cached_tokens, 512u);
    ExpectSame(warm, cold);
  }
}

TEST_P(TransformerEngine, PreemptionChangesNoBit) {
  const auto roomy = Make();
  // Two prompts fit into the pool, their outputs do not.
  const auto tight = Make(/*step_tokens_max=*/512, /*pages=*/2 * 17 + 1);
  const uint32_t output = 64;
  for (uint64_t number : {1u, 2u}) ASSERT_TRUE(tight->Submit(Spec(number, 530, output)).ok());
  tight->Drain();
  EXPECT_GT(tight->record(1).stats.preemptions + tight->record(2).stats.preemptions, 0u);
  for (uint64_t number : {1u, 2u}) {
    ExpectSame(tight->record(number), roomy->Run(Spec(number, 530, output)));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TransformerEngine, ::testing::ValuesIn(ModelPaths()),
                         [](const auto& test) -> std::string {
                           if (absl::StrContains(test.param, "tiny-llama")) return "llama";
                           if (absl::StrContains(test.param, "tiny-kimi")) return "kimi";
                           return absl::StrContains(test.param, "tiny-qwen3") ? "qwen3" : "real";
                         });

}  // namespace
}  // namespace sluice::engine
