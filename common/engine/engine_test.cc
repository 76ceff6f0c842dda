// Exactness: how a sequence is cut, batched, cached or preempted changes neither its tokens nor its logits.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace sluice::engine {
namespace {

SequenceSpec Seeded(SequenceSpec spec, uint64_t seed) {
  spec.sampling.temperature = 1.0f;
  spec.sampling.top_p = 0.95f;
  spec.sampling.frequency_penalty = 0.3f;
  spec.sampling.seed = seed;
  return spec;
}

void ExpectSame(const Record& a, const Record& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.hashes, b.hashes);
  EXPECT_EQ(a.finish, b.finish);
}

TEST(EngineExactness, ChunkSizeDoesNotMatter) {
  for (kernels::KvFormat format : {kernels::KvFormat::kGqaFp8, kernels::KvFormat::kBf16, kernels::KvFormat::kF32}) {
    TestEngineOptions options;
    options.model.layout = ToyLayoutSpec(format);
    options.engine.step_tokens_max = 4096;
    TestEngine whole(options);
    const Record greedy = whole.Run(LocalSpec(1, RandomPrompt(1, 600)));
    const Record seeded = whole.Run(Seeded(LocalSpec(2, RandomPrompt(1, 600)), 7));
    EXPECT_EQ(greedy.tokens.size(), 16u);
    EXPECT_NE(greedy.tokens, seeded.tokens);
    for (uint32_t chunk : {1u, 7u, 32u, 33u, 200u}) {
      options.engine.step_tokens_max = chunk;
      TestEngine cut(options);
      ExpectSame(greedy, cut.Run(LocalSpec(1, RandomPrompt(1, 600))));
      ExpectSame(seeded, cut.Run(Seeded(LocalSpec(2, RandomPrompt(1, 600)), 7)));
      EXPECT_EQ(cut.pool().counts().free, options.pages);
    }
  }
}

}  // namespace
}  // namespace sluice::engine
