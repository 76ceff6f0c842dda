// Exactness: how a sequence is cut, batched, cached, moved or preempted changes neither its tokens
// nor its logits.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cstring>

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

// A spec of some length, greedy or seeded by its number.
SequenceSpec Mixed(uint64_t number, size_t prompt_max = 300) {
  SeededRandom random(number + 77);
  SequenceSpec spec = LocalSpec(number, RandomPrompt(number, 1 + random.Below(prompt_max)),
                                1 + static_cast<uint32_t>(random.Below(60)));
  spec.sampling.ignore_eos = random.Below(2) == 0;
  spec.domain = TestDomain();
  return random.Below(2) == 0 ? std::move(spec) : Seeded(std::move(spec), number);
}

void ExpectSame(const Record& a, const Record& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.hashes, b.hashes);
  EXPECT_EQ(a.finish, b.finish);
  EXPECT_TRUE(a.status.ok() && b.status.ok()) << a.status << " " << b.status;
}

struct Layout {
  kernels::KvFormat format;
  uint32_t sink_rows = 0;
};

class EngineExactness : public testing::TestWithParam<Layout> {
 protected:
  TestEngineOptions Options() const {
    TestEngineOptions options;
    options.model.layout = ToyLayoutSpec(GetParam().format);
    options.model.layout.sink_rows = GetParam().sink_rows;
    options.engine.step_tokens_max = 4096;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, EngineExactness,
                         testing::Values(Layout{kernels::KvFormat::kGqaFp8},
                                         Layout{kernels::KvFormat::kBf16},
                                         Layout{kernels::KvFormat::kF32},
                                         Layout{kernels::KvFormat::kGqaFp8c, 1},
                                         Layout{kernels::KvFormat::kGqaInt8c, 1}));

TEST_P(EngineExactness, ChunkSizeDoesNotMatter) {
  TestEngineOptions options = Options();
  TestEngine whole(options);
  const Record greedy = whole.Run(LocalSpec(1, RandomPrompt(1, 600)));
  const Record seeded = whole.Run(Seeded(LocalSpec(2, RandomPrompt(1, 600)), 7));
  EXPECT_EQ(greedy.tokens.size(), 16u);
  EXPECT_NE(greedy.tokens, seeded.tokens);
  EXPECT_NE(greedy.hashes[0], greedy.hashes[1]);
  for (uint32_t chunk : {1u, 7u, 32u, 33u, 200u}) {
    options.engine.step_tokens_max = chunk;
    TestEngine cut(options);
    ExpectSame(greedy, cut.Run(LocalSpec(1, RandomPrompt(1, 600))));
    ExpectSame(seeded, cut.Run(Seeded(LocalSpec(2, RandomPrompt(1, 600)), 7)));
    EXPECT_EQ(cut.pool().counts().free, options.pages);
  }
}

TEST_P(EngineExactness, TheBatchDoesNotMatter) {
  TestEngineOptions options = Options();
  TestEngine alone(options);
  const Record expected = alone.Run(Seeded(LocalSpec(1, RandomPrompt(1, 333), 40), 7));
  options.engine.step_tokens_max = 100;
  TestEngine crowd(options);
  for (uint64_t id = 2; id < 17; ++id) {
    ASSERT_TRUE(crowd.Submit(Seeded(LocalSpec(id, RandomPrompt(id, 100 + id), 30), id)).ok());
    if (id == 9) {
      ASSERT_TRUE(crowd.Submit(Seeded(LocalSpec(1, RandomPrompt(1, 333), 40), 7)).ok());
    }
  }
  crowd.Drain();
  ExpectSame(expected, crowd.record(1));
  EXPECT_EQ(crowd.pool().counts().free, options.pages);
}

TEST_P(EngineExactness, CachedPrefixesDoNotMatter) {
  TestEngineOptions options = Options();
  TestEngine cold(options);
  TestEngine warm(options);
  const std::vector<TokenId> prompt = RandomPrompt(4, 400);
  for (size_t shared : {400u, 200u, 384u, 385u}) {
    std::vector<TokenId> tokens(prompt.begin(),
                                prompt.begin() + static_cast<std::ptrdiff_t>(shared));
    SequenceSpec spec = Seeded(LocalSpec(shared, tokens, 50), 3);
    const Record expected = cold.Run(spec);
    spec.domain = TestDomain();
    const Record first = warm.Run(spec);
    ExpectSame(expected, first);
    EXPECT_EQ(first.cached_tokens,
              shared == 400 ? 0u : (shared - 1) / 32 * 32 - GetParam().sink_rows);
    EXPECT_EQ(first.stats.cached_tokens, first.cached_tokens);
    EXPECT_EQ(first.stats.computed_tokens, shared - first.cached_tokens);
    EXPECT_EQ(first.stats.recomputed_tokens, 0u);
  }
  EXPECT_EQ(warm.pool().counts().active, 0u);
}

// The second turn of a chat: the output of the first is part of the prompt, and cached.
TEST_P(EngineExactness, OutputBlocksAreReused) {
  TestEngine engine(Options());
  SequenceSpec spec = LocalSpec(1, RandomPrompt(4, 50), 100);
  spec.domain = TestDomain();
  const Record first = engine.Run(spec);
  spec.id = SequenceId(2);
  spec.prompt.insert(spec.prompt.end(), first.tokens.begin(), first.tokens.end());
  const Record second = engine.Run(spec);
  // Four blocks of the 149 tokens that were computed; the last of the output never was.
  EXPECT_EQ(second.cached_tokens, 128u - GetParam().sink_rows);
  spec.domain.reset();
  TestEngine cold(Options());
  ExpectSame(cold.Run(spec), second);
}

TEST_P(EngineExactness, TenantsDoNotShareBlocks) {
  TestEngine engine(Options());
  SequenceSpec spec = LocalSpec(1, RandomPrompt(4, 100));
  spec.domain = TestDomain("a");
  engine.Run(spec);
  spec.id = SequenceId(2);
  spec.domain = TestDomain("b");
  EXPECT_EQ(engine.Run(spec).cached_tokens, 0u);
}

TEST_P(EngineExactness, PreemptionDoesNotMatter) {
  TestEngineOptions options = Options();
  for (bool cached : {false, true}) {
    TestEngine roomy(options);
    TestEngineOptions tight_options = options;
    tight_options.pages = 24;
    tight_options.engine.step_tokens_max = 64;
    TestEngine tight(tight_options);
    std::map<uint64_t, Record> expected;
    for (uint64_t id = 0; id < 8; ++id) {
      SequenceSpec spec = Seeded(LocalSpec(id, RandomPrompt(id, 90 + id), 200), id);
      expected[id] = roomy.Run(spec);
      if (cached) spec.domain = TestDomain();
      ASSERT_TRUE(tight.Submit(spec).ok());
    }
    tight.Drain();
    uint32_t preemptions = 0;
    for (uint64_t id = 0; id < 8; ++id) {
      ExpectSame(expected[id], tight.record(id));
      EXPECT_EQ(tight.record(id).started, 1);
      preemptions += tight.record(id).stats.preemptions;
      EXPECT_EQ(tight.record(id).stats.recomputed_tokens > 0,
                tight.record(id).stats.preemptions > 0);
    }
    EXPECT_GT(preemptions, 0u);
    EXPECT_EQ(tight.pool().counts().active, 0u);
    if (!cached) {
      EXPECT_EQ(tight.pool().counts().free, 24u);
    }
  }
}

TEST_P(EngineExactness, SixtyFourMixedSequencesEqualTheirSoloRuns) {
  TestEngineOptions options = Options();
  options.pages = 160;
  options.engine.step_tokens_max = 128;
  options.engine.batch_max = 24;
  TestEngine together(options);
  for (uint64_t id = 0; id < 64; ++id) {
    ASSERT_TRUE(together.Submit(Mixed(id)).ok());
    if (id % 5 == 0) together->Step();
  }
  together.Drain();
  for (uint64_t id = 0; id < 64; ++id) {
    SCOPED_TRACE(id);
    TestEngine solo(Options());
    ExpectSame(solo.Run(Mixed(id)), together.record(id));
  }
  EXPECT_EQ(together.pool().counts().active, 0u);
}

// Output that the client has already is fed, never sampled again; the stream goes on as if it had
// never stopped.
TEST_P(EngineExactness, AStreamContinuesFromWhatWasEmitted) {
  TestEngine engine(Options());
  const Record whole = engine.Run(Seeded(LocalSpec(1, RandomPrompt(9, 77), 60), 5));
  ASSERT_EQ(whole.tokens.size(), 60u);
  for (size_t emitted : {1u, 20u, 59u}) {
    SequenceSpec spec = Seeded(LocalSpec(100 + emitted, RandomPrompt(9, 77), 60), 5);
    spec.emitted.assign(whole.tokens.begin(),
                        whole.tokens.begin() + static_cast<std::ptrdiff_t>(emitted));
    const Record rest = engine.Run(spec);
    EXPECT_EQ(rest.tokens,
              std::vector<TokenId>(whole.tokens.begin() + static_cast<std::ptrdiff_t>(emitted),
                                   whole.tokens.end()));
    EXPECT_EQ(rest.hashes,
              std::vector<uint64_t>(whole.hashes.begin() + static_cast<std::ptrdiff_t>(emitted),
                                    whole.hashes.end()));
    EXPECT_EQ(engine.events.first_position[100 + emitted], emitted);
    EXPECT_EQ(rest.stats.recomputed_tokens, emitted - 1);
    EXPECT_EQ(rest.stats.computed_tokens, 77u);
  }
}

// The pages of a prefill, copied byte for byte into the pool of another engine.
SequenceSpec Moved(const SequenceSpec& spec, const Record& prefill, TestEngine& to) {
  SequenceSpec decode = Copy(spec);
  decode.kind = SequenceKind::kDecode;
  decode.offer_pages = false;
  decode.emitted.push_back(prefill.tokens.at(0));
  const kv::PageLayout& layout = to.pool().layout();
  auto pages = to.pool().Allocate(layout.PagesFor(static_cast<uint32_t>(spec.prompt.size())), {},
                                  spec.tenant);
  SLUICE_CHECK(pages.ok()) << pages.status();
  for (const FinalPage& page : prefill.pins) {
    std::memcpy((*pages)[page.block].data() + kv::kPageHeaderBytes,
                page.pin.data() + kv::kPageHeaderBytes, layout.page_bytes() - kv::kPageHeaderBytes);
  }
  decode.pages = *std::move(pages);
  return decode;
}

TEST_P(EngineExactness, SplitEqualsLocal) {
  TestEngineOptions options = Options();
  options.engine.step_tokens_max = 100;
  TestEngine local(options), prefill(options), decode(options);
  prefill.events.keep_pins = true;
  for (size_t length : {1u, 31u, 32u, 33u, 300u}) {
    SequenceSpec spec = Seeded(LocalSpec(length, RandomPrompt(length, length), 80), length);
    const Record expected = local.Run(spec);
    spec.kind = SequenceKind::kPrefill;
    spec.offer_pages = true;
    Record first = prefill.Run(spec);
    EXPECT_EQ(first.prompt_done, 1);
    const Record rest = decode.Run(Moved(spec, first, decode));
    first.tokens.insert(first.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    first.hashes.insert(first.hashes.end(), rest.hashes.begin(), rest.hashes.end());
    EXPECT_EQ(first.tokens, expected.tokens);
    EXPECT_EQ(first.hashes, expected.hashes);
    EXPECT_EQ(rest.stats.recomputed_tokens + rest.stats.computed_tokens, 0u);
  }
  prefill.events.records.clear();
  EXPECT_EQ(prefill.pool().counts().free, options.pages);
  EXPECT_EQ(decode.pool().counts().free, options.pages);
}

}  // namespace
}  // namespace sluice::engine
