// Too few pages: who waits, who is preempted, and that all get through.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/engine_test_support.h"

namespace sluice::engine {
namespace {

// A decode whose pages hold what this model would have computed: they are taken from a prefill of
// the same engine.
SequenceSpec DecodeSpec(TestEngine& engine, uint64_t id, size_t prompt, uint32_t max_tokens) {
  SequenceSpec prefill = LocalSpec(id + 5000, RandomPrompt(id, prompt));
  prefill.kind = SequenceKind::kPrefill;
  prefill.offer_pages = true;
  engine.events.keep_pins = true;
  Record done = engine.Run(prefill);
  SequenceSpec spec = LocalSpec(id, RandomPrompt(id, prompt), max_tokens);
  spec.kind = SequenceKind::kDecode;
  spec.emitted = done.tokens;
  std::map<uint32_t, kv::PageLease> pages;
  for (FinalPage& page : done.pins) pages[page.block] = std::move(page.pin);
  for (auto& [block, lease] : pages) spec.pages.push_back(std::move(lease));
  engine.events.records.erase(id + 5000);
  return spec;
}

TEST(EnginePressure, ASequenceThatOutgrowsThePoolEndsAlone) {
  TestEngineOptions options;
  options.pages = 4;
  TestEngine engine(options);
  const Record record = engine.Run(LocalSpec(1, RandomPrompt(1, 100), 500));
  EXPECT_TRUE(absl::IsResourceExhausted(record.status)) << record.status;
  EXPECT_EQ(record.tokens.size(), 29u);  // the last of them would be the 129th token
  EXPECT_EQ(engine.pool().counts().free, 4u);
}

TEST(EnginePressure, OldStreamsAreNotPreemptedByYoungOnes) {
  TestEngineOptions options;
  options.pages = 12;
  TestEngine engine(options);
  for (uint64_t id = 1; id <= 4; ++id)
    ASSERT_TRUE(engine.Submit(LocalSpec(id, RandomPrompt(id, 60), 200)).ok());
  engine.Drain();
  EXPECT_EQ(engine.record(1).stats.preemptions, 0u);
  EXPECT_GT(engine.record(4).stats.preemptions, 0u);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(engine.record(id).tokens.size(), 200u);
}

TEST(EnginePressure, PriorityDecidesWhoStays) {
  TestEngineOptions options;
  options.pages = 12;
  TestEngine engine(options);
  for (uint64_t id = 1; id <= 4; ++id) {
    SequenceSpec spec = LocalSpec(id, RandomPrompt(id, 60), 200);
    spec.priority = id == 4 ? 1 : 0;
    ASSERT_TRUE(engine.Submit(spec).ok());
  }
  engine.Drain();
  EXPECT_EQ(engine.record(4).stats.preemptions, 0u);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(engine.record(id).tokens.size(), 200u);
}

TEST(EnginePressure, WaitsForPagesThatOthersHold) {
  TestEngineOptions options;
  options.pages = 8;
  TestEngine engine(options);
  auto held = engine.pool().Allocate(6, {}, TenantId("x"));
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(engine.Submit(LocalSpec(1, RandomPrompt(1, 100))).ok());
  EXPECT_EQ(engine->Step(), 0u);
  EXPECT_TRUE(engine->HasWork());
  held->clear();
  engine.Drain();
  EXPECT_EQ(engine.record(1).tokens.size(), 16u);
}

TEST(EnginePressure, AStreamThatLacksAPageWaitsHoldingItsOwn) {
  TestEngineOptions options;
  options.pages = 8;
  TestEngine engine(options);
  ASSERT_TRUE(engine.Submit(LocalSpec(1, RandomPrompt(1, 32), 60)).ok());
  engine->Step();
  auto held = engine.pool().Allocate(7, {}, TenantId("x"));
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(engine->Step(), 0u);
  EXPECT_EQ(engine.record(1).tokens.size(), 1u);
  held->clear();
  engine.Drain();
  EXPECT_EQ(engine.record(1).tokens.size(), 60u);
  EXPECT_EQ(engine.record(1).stats.preemptions, 0u);
}

// Four streams of one long prompt fit only because they share its pages.
TEST(EnginePressure, SharedPrefixesAreCountedOnce) {
  TestEngineOptions options;
  options.pages = 24;
  TestEngine engine(options);
  SequenceSpec spec = LocalSpec(1, RandomPrompt(1, 320), 25);
  spec.domain = TestDomain();
  ASSERT_TRUE(engine.Submit(spec).ok());
  engine->Step();
  for (uint64_t id = 2; id <= 4; ++id) {
    spec.id = SequenceId(id);
    ASSERT_TRUE(engine.Submit(spec).ok());
  }
  engine->Step();
  EXPECT_EQ(engine->load().running, 4u);
  engine.Drain();
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(engine.record(id).tokens, engine.record(1).tokens);
    EXPECT_EQ(engine.record(id).stats.preemptions, 0u);
  }
  EXPECT_EQ(engine.pool().counts().active, 0u);
}

// The prefix of the newcomer looks like free room until it is taken; trying must not cost the
// cache.
TEST(EnginePressure, AnAdmissionThatFailsEvictsNothing) {
  TestEngineOptions options;
  options.pages = 24;
  TestEngine engine(options);
  SequenceSpec other = LocalSpec(1, RandomPrompt(1, 97), 1);
  SequenceSpec prefix = LocalSpec(2, RandomPrompt(2, 257), 1);
  other.domain = prefix.domain = TestDomain();
  engine.Run(other);
  engine.Run(prefix);
  ASSERT_EQ(engine.pool().counts().cached, 11u);
  ASSERT_TRUE(engine.Submit(LocalSpec(3, RandomPrompt(3, 353), 20)).ok());
  engine->Step();
  ASSERT_EQ(engine.pool().counts().free, 1u);
  SequenceSpec newcomer = LocalSpec(4, RandomPrompt(2, 257), 5);
  newcomer.prompt.resize(446, 7);
  newcomer.domain = TestDomain();
  ASSERT_TRUE(engine.Submit(std::move(newcomer)).ok());
  for (int i = 0; i < 5; ++i) engine->Step();
  EXPECT_EQ(engine->load().waiting, 1u);
  EXPECT_EQ(engine.index().stats().blocks, 11u);
  engine.Drain();
  EXPECT_EQ(engine.record(4).cached_tokens, 256u);
}

// A block in the middle of a chain is pinned, so the cached one above it cannot be evicted, though
// it counts as available: the streams must settle it among themselves.
TEST(EnginePressure, ACachedPageThatCannotBeEvictedStallsNobody) {
  TestEngineOptions options;
  options.pages = 9;
  TestEngine engine(options);
  engine.events.keep_pins = true;
  SequenceSpec prefill = LocalSpec(9, RandomPrompt(9, 65));
  prefill.kind = SequenceKind::kPrefill;
  prefill.offer_pages = true;
  prefill.held_blocks = 1;
  prefill.domain = TestDomain();
  const Record pinned = engine.Run(std::move(prefill));
  ASSERT_EQ(engine.pool().counts().cached, 1u);
  ASSERT_EQ(engine.pool().counts().active, 2u);
  for (uint64_t id : {1u, 2u}) {
    ASSERT_TRUE(engine.Submit(LocalSpec(id, RandomPrompt(id, 90), 30)).ok());
  }
  engine.Drain();
  EXPECT_EQ(engine.record(1).tokens.size(), 30u);
  EXPECT_EQ(engine.record(1).stats.preemptions, 0u);
  EXPECT_EQ(engine.record(2).tokens.size(), 30u);
  EXPECT_GT(engine.record(2).stats.preemptions, 0u);
}

TEST(EnginePressure, AFloodOfSmallOnesDoesNotStarveALargePrompt) {
  TestEngineOptions options;
  options.pages = 10;
  TestEngine engine(options);
  // Of different lengths, so that they never all end at once.
  uint64_t id = 0;
  const auto submit_small = [&] {
    const auto tokens = static_cast<uint32_t>(5 + id % 7);
    ASSERT_TRUE(engine.Submit(LocalSpec(id, RandomPrompt(id, 20), tokens)).ok());
    ++id;
  };
  for (int step = 0; step < 10; ++step) {
    submit_small();
    engine->Step();
  }
  ASSERT_TRUE(engine.Submit(LocalSpec(1000, RandomPrompt(1000, 250), 3)).ok());
  for (int step = 0; engine.record(1000).started == 0; ++step) {
    ASSERT_LT(step, 200) << "starved";
    submit_small();
    engine->Step();
  }
  engine.Drain();
  EXPECT_EQ(engine.record(1000).tokens.size(), 3u);
}

// Two that start together compute the same prompt twice, then go on with one copy of it.
TEST(EnginePressure, TwinsEndUpWithOneCopyOfTheirPrompt) {
  TestEngineOptions options;
  TestEngine engine(options);
  for (uint64_t id : {1u, 2u}) {
    SequenceSpec spec = LocalSpec(id, RandomPrompt(1, 320), 40);
    spec.domain = TestDomain();
    ASSERT_TRUE(engine.Submit(std::move(spec)).ok());
  }
  while (engine.record(2).tokens.empty()) engine->Step();
  EXPECT_EQ(engine.record(2).cached_tokens, 0u);
  engine->Step();
  EXPECT_EQ(engine.pool().counts().active, 12u);
  engine.Drain();
  EXPECT_EQ(engine.record(1).hashes, engine.record(2).hashes);
  EXPECT_EQ(engine.pool().counts().active, 0u);
}

TEST(EnginePressure, APreemptedDecodeRecomputesItsPrompt) {
  TestEngineOptions options;
  options.pages = 10;
  TestEngine engine(options);
  TestEngine roomy({});
  ASSERT_TRUE(engine.Submit(DecodeSpec(engine, 1, 60, 200)).ok());
  ASSERT_TRUE(engine.Submit(DecodeSpec(engine, 2, 60, 200)).ok());
  engine.Drain();
  EXPECT_EQ(engine.record(1).stats.preemptions, 0u);
  EXPECT_GT(engine.record(2).stats.preemptions, 0u);
  EXPECT_GE(engine.record(2).stats.recomputed_tokens, 60u);
  for (uint64_t id : {1u, 2u}) {
    const Record expected = roomy.Run(LocalSpec(id, RandomPrompt(id, 60), 200));
    EXPECT_EQ(engine.record(id).tokens,
              std::vector<TokenId>(expected.tokens.begin() + 1, expected.tokens.end()));
    EXPECT_EQ(engine.record(id).hashes,
              std::vector<uint64_t>(expected.hashes.begin() + 1, expected.hashes.end()));
  }
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

class ForeignPages : public testing::TestWithParam<bool> {};

// Whether the engine recomputes no prompts at all, or only not this one.
TEST_P(ForeignPages, APreemptedDecodeIsAborted) {
  TestEngineOptions options;
  options.pages = 10;
  options.engine.may_recompute_prompts = GetParam();
  TestEngine engine(options);
  ASSERT_TRUE(engine.Submit(DecodeSpec(engine, 1, 60, 200)).ok());
  SequenceSpec second = DecodeSpec(engine, 2, 60, 200);
  second.domain = TestDomain();
  second.own_numerics = !GetParam();
  ASSERT_TRUE(engine.Submit(std::move(second)).ok());
  engine.Drain();
  EXPECT_TRUE(engine.record(1).status.ok());
  EXPECT_TRUE(absl::IsAborted(engine.record(2).status)) << engine.record(2).status;
  EXPECT_EQ(engine.index().stats().blocks, 0u) << "published pages made by other numerics";
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

INSTANTIATE_TEST_SUITE_P(Engine, ForeignPages, testing::Bool());

// More decodes than fit the batch, all pages taken: those that wait hold what the others need.
TEST(EnginePressure, DecodesWithPagesCannotBlockEachOther) {
  TestEngineOptions options;
  options.pages = 12;
  options.engine.batch_max = 2;
  TestEngine engine(options);
  std::vector<SequenceSpec> specs;
  for (uint64_t id = 1; id <= 6; ++id) specs.push_back(DecodeSpec(engine, id, 64, 70));
  EXPECT_EQ(engine.pool().counts().free, 0u);
  for (SequenceSpec& spec : specs) ASSERT_TRUE(engine.Submit(std::move(spec)).ok());
  engine.Drain();
  for (uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(engine.record(id).finished, 1) << id;
    EXPECT_EQ(engine.record(id).tokens.size(), 69u) << id;
  }
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

// They take turns: no stream waits for another one's end.
TEST(EnginePressure, MoreDecodesThanPlacesAdvanceTogether) {
  TestEngineOptions options;
  options.engine.batch_max = 4;
  TestEngine engine(options);
  std::vector<SequenceSpec> specs;
  for (uint64_t id = 0; id < 6; ++id) specs.push_back(DecodeSpec(engine, id, 64, 70));
  for (SequenceSpec& spec : specs) ASSERT_TRUE(engine.Submit(std::move(spec)).ok());
  for (size_t tokens = 2; tokens <= 60; tokens += 2) {
    for (int step = 0; step < 3; ++step) EXPECT_EQ(engine->Step(), 4u);
    for (uint64_t id = 0; id < 6; ++id) EXPECT_EQ(engine.record(id).tokens.size(), tokens) << id;
  }
}

// One place, and always somebody younger and more important.
TEST(EnginePressure, AnUnimportantPromptStartsUnderAFloodOfImportantOnes) {
  TestEngineOptions options;
  options.engine.batch_max = 1;
  TestEngine engine(options);
  ASSERT_TRUE(engine.Submit(LocalSpec(0, RandomPrompt(0, 20), 1)).ok());
  for (uint64_t id = 1; id <= 40 && engine.record(0).started == 0; ++id) {
    SequenceSpec spec = LocalSpec(id, RandomPrompt(id, 20), 1);
    spec.priority = 1;
    ASSERT_TRUE(engine.Submit(std::move(spec)).ok());
    engine->Step();
  }
  EXPECT_EQ(engine.record(0).started, 1);
}

TEST(EnginePressure, APreemptedPrefillReportsEveryPageOnce) {
  TestEngineOptions options;
  options.pages = 24;
  options.engine.step_tokens_max = 10;
  TestEngine engine(options);
  ASSERT_TRUE(engine.Submit(LocalSpec(1, RandomPrompt(1, 300), 200)).ok());
  while (engine.record(1).tokens.size() < 3) engine->Step();
  SequenceSpec spec = LocalSpec(2, RandomPrompt(2, 400));
  spec.kind = SequenceKind::kPrefill;
  spec.offer_pages = true;
  ASSERT_TRUE(engine.Submit(spec).ok());
  engine->Step();
  auto held = engine.pool().Allocate(engine.pool().counts().free, {}, TenantId("x"));
  ASSERT_TRUE(held.ok());
  while (engine->load().waiting == 0) ASSERT_GT(engine->Step(), 0u);
  ASSERT_FALSE(engine.record(2).reported.empty());
  ASSERT_EQ(engine.record(2).prompt_done, 0);
  held->clear();
  engine.Drain();
  EXPECT_EQ(engine.record(2).stats.preemptions, 1u);
  EXPECT_TRUE(engine.record(2).status.ok());
  EXPECT_EQ(engine.record(2).reported.size(), 13u * 2);
  for (const auto& [piece, times] : engine.record(2).reported)
    EXPECT_EQ(times, 1) << "block " << piece.first;
}

// Makes a decode of it, if there are pages; what they hold does not matter here.
void BringPages(TestEngine& engine, SequenceSpec& spec) {
  const uint32_t pages = engine.pool().layout().PagesFor(static_cast<uint32_t>(spec.prompt.size()));
  auto allocated = engine.pool().Allocate(pages, {}, spec.tenant);
  if (!allocated.ok()) return;
  spec.kind = SequenceKind::kDecode;
  spec.offer_pages = false;
  spec.emitted = {1};
  spec.pages = *std::move(allocated);
}

// Random loads on small pools, with cancels, deadlines and another user of the pool.
TEST(EnginePressure, EveryRandomLoadEndsAndGivesThePagesBack) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    TestEngineOptions options;
    options.pages = 8 + random.Below(24);
    options.engine.step_tokens_max = 1 + static_cast<uint32_t>(random.Below(100));
    options.engine.batch_max = 1 + static_cast<uint32_t>(random.Below(8));
    options.engine.may_recompute_prompts = random.Below(4) > 0;
    TestEngine engine(options);
    std::vector<kv::PageLease> held;
    uint64_t submitted = 0;
    for (int step = 0; step < 400; ++step) {
      if (random.Below(8) == 0) {
        SequenceSpec spec = LocalSpec(
            submitted, RandomPrompt(random.Below(4), 1 + random.Below(options.pages * 16)),
            1 + static_cast<uint32_t>(random.Below(options.pages * 12)));
        spec.kind = random.Below(3) == 0 ? SequenceKind::kPrefill : SequenceKind::kLocal;
        spec.offer_pages = spec.kind == SequenceKind::kPrefill;
        spec.priority = static_cast<int32_t>(random.Below(2));
        if (random.Below(2) == 0) spec.domain = TestDomain();
        if (random.Below(6) == 0)
          spec.deadline = engine.clock.Now() + absl::Seconds(random.Below(100));
        if (random.Below(4) == 0) BringPages(engine, spec);
        if (engine.Submit(std::move(spec)).ok()) ++submitted;
      }
      if (random.Below(30) == 0) engine->Cancel(SequenceId(random.Below(submitted + 1)));
      if (random.Below(20) == 0) {
        auto pages = engine.pool().Allocate(1 + random.Below(4), {}, TenantId("x"));
        if (pages.ok()) std::move(pages->begin(), pages->end(), std::back_inserter(held));
      }
      if (random.Below(10) == 0) held.clear();
      engine.clock.Advance(absl::Seconds(1));
      engine->Step();
    }
    held.clear();
    engine.Drain();
    EXPECT_FALSE(engine->HasWork());
    EXPECT_EQ(engine.events.records.size(), submitted);
    for (const auto& [id, record] : engine.events.records) EXPECT_EQ(record.finished, 1) << id;
    EXPECT_EQ(engine.pool().counts().active, 0u);
    EXPECT_EQ(engine.pool().counts().total(), options.pages);
  }
}

}  // namespace
}  // namespace sluice::engine
