// How sequences start and end: refusals, cancellation in every state, deadlines, damaged pages,
// failing runners, reports.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "engine/engine_test_support.h"

namespace sluice::engine {
namespace {

// The toy model with something done between layers or instead of a pass.
class HookedRunner final : public ModelRunner {
 public:
  explicit HookedRunner(const ToyModelOptions& options) {
    auto made = CreateToyModel(options);
    SLUICE_CHECK(made.ok()) << made.status();
    toy_ = *std::move(made);
  }
  const ModelInfo& info() const override { return toy_->info(); }
  uint64_t weight_bytes_read() const override { return 0; }
  absl::Status Forward(absl::Span<const Segment> segments, ForwardHooks* hooks,
                       absl::Span<float> logits) override {
    ++passes;
    uint32_t tokens = 0;
    for (const Segment& segment : segments) tokens += static_cast<uint32_t>(segment.tokens.size());
    if (on_pass) on_pass(tokens, segments.size());
    struct Between final : ForwardHooks {
      void LayersDone(int begin, int end) override {
        inner->LayersDone(begin, end);
        if (runner->between_layers) runner->between_layers();
      }
      bool Cancelled() override { return inner->Cancelled(); }
      ForwardHooks* inner;
      HookedRunner* runner;
    } between;
    between.inner = hooks;
    between.runner = this;
    return toy_->Forward(segments, &between, logits);
  }

  int passes = 0;
  std::function<void(uint32_t tokens, size_t segments)> on_pass;
  std::function<void()> between_layers;

 private:
  std::unique_ptr<ModelRunner> toy_;
};

SequenceSpec PrefillSpec(uint64_t id, std::vector<TokenId> prompt) {
  SequenceSpec spec = LocalSpec(id, std::move(prompt));
  spec.kind = SequenceKind::kPrefill;
  spec.offer_pages = true;
  return spec;
}

TEST(EngineRefusals, SayWhatIsWrongAndSendNoEvent) {
  TestEngineOptions options;
  options.model.context_tokens = 1000;
  options.pages = 20;
  TestEngine engine(options);
  const auto refused = [&](const std::function<void(SequenceSpec&)>& change,
                           absl::StatusCode code) {
    SequenceSpec spec = LocalSpec(1, RandomPrompt(1, 10));
    change(spec);
    const absl::Status status = engine.Submit(std::move(spec));
    EXPECT_EQ(status.code(), code) << status;
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  refused([](SequenceSpec& s) { s.prompt.clear(); }, kInvalid);
  refused([](SequenceSpec& s) { s.prompt = RandomPrompt(1, 1001); }, kInvalid);
  refused([](SequenceSpec& s) { s.prompt = RandomPrompt(1, 641); },
          absl::StatusCode::kResourceExhausted);
  refused([](SequenceSpec& s) { s.prompt[3] = 258; }, kInvalid);
  refused([](SequenceSpec& s) { s.emitted = {-1}; }, kInvalid);
  refused([](SequenceSpec& s) { s.emitted.assign(16, 1); }, kInvalid);
  refused([](SequenceSpec& s) { s.sampling.top_p = 2; }, kInvalid);
  refused([](SequenceSpec& s) { s.kind = SequenceKind::kDecode; }, kInvalid);
  refused(
      [](SequenceSpec& s) {
        s.kind = SequenceKind::kDecode;
        s.emitted = {1};
      },
      kInvalid);
  EXPECT_TRUE(engine.events.records.empty());
  EXPECT_FALSE(engine->HasWork());
  ASSERT_TRUE(engine.Submit(LocalSpec(1, RandomPrompt(1, 10))).ok());
  refused([](SequenceSpec&) {}, kInvalid);  // the id is in use
  EXPECT_EQ(engine.pool().counts().free, 20u);
}

TEST(EngineRefusals, WaitingIsBounded) {
  TestEngineOptions options;
  options.engine.waiting_max = 3;
  options.engine.batch_max = 2;
  TestEngine engine(options);
  for (uint64_t id = 0; id < 3; ++id) ASSERT_TRUE(engine.Submit(LocalSpec(id, {1})).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine.Submit(LocalSpec(3, {1}))));
  engine->Step();  // two run now
  EXPECT_TRUE(engine.Submit(LocalSpec(3, {1})).ok());
  EXPECT_TRUE(engine.Submit(LocalSpec(4, {1})).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine.Submit(LocalSpec(5, {1}))));
  EXPECT_EQ(engine->load().running, 2u);
  EXPECT_EQ(engine->load().waiting, 3u);
  engine.Drain();
  EXPECT_EQ(engine.events.records.size(), 5u);
}

TEST(EngineEnds, AtEosStopIdLengthAndContext) {
  TestEngineOptions options;
  options.model.context_tokens = 100;
  options.model.eos_one_in = 4;
  TestEngine engine(options);
  SequenceSpec spec = LocalSpec(1, RandomPrompt(1, 20), 60);
  const Record free_run = engine.Run(spec);
  EXPECT_EQ(free_run.finish, request::FinishReason::kLength);
  const auto eos = std::find(free_run.tokens.begin(), free_run.tokens.end(), kToyEos);
  ASSERT_NE(eos, free_run.tokens.end());

  spec.id = SequenceId(2);
  spec.sampling.ignore_eos = false;
  const Record stopped = engine.Run(spec);
  EXPECT_EQ(stopped.finish, request::FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector<TokenId>(free_run.tokens.begin(), eos + 1));

  spec.id = SequenceId(3);
  spec.sampling.stop_token_ids = {free_run.tokens[0]};
  EXPECT_EQ(engine.Run(spec).tokens.size(), 1u);

  spec = LocalSpec(4, RandomPrompt(1, 90), 60);
  const Record full = engine.Run(spec);
  EXPECT_EQ(full.finish, request::FinishReason::kLength);
  EXPECT_EQ(full.tokens.size(), 10u);

  spec = LocalSpec(5, RandomPrompt(1, 100), 60);
  EXPECT_EQ(engine.Run(spec).tokens.size(), 1u);
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

// The bias makes 'a' win until the penalty has outgrown it; output from before a move counts too.
TEST(EngineEnds, PenaltiesCountTheWholeOutput) {
  TestEngine engine({});
  SequenceSpec spec = LocalSpec(1, {1, 2, 3}, 40);
  spec.sampling.logit_bias = {{'a', 40.0f}};
  spec.sampling.frequency_penalty = 2.0f;
  const Record record = engine.Run(spec);
  const auto count = std::count(record.tokens.begin(), record.tokens.end(), 'a');
  EXPECT_GT(count, 10);
  EXPECT_LT(count, 30);
  spec.id = SequenceId(2);
  spec.emitted.assign(30, 'a');
  EXPECT_NE(engine.Run(spec).tokens[0], 'a');
}

TEST(EngineEnds, LogprobsTravelWithTheToken) {
  TestEngine engine({});
  SequenceSpec spec = LocalSpec(1, {1, 2, 3}, 4);
  spec.sampling.logprobs = 3;
  const Record record = engine.Run(spec);
  for (const request::SampledToken& token : record.sampled) {
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].token, token.token);
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_LT(token.logprob, 0);
  }
}

class EngineCancel : public testing::Test {
 protected:
  // Runs a bystander beside the victim and checks that it notices nothing and that all pages come
  // back.
  void Check(const std::function<void(TestEngine&)>& until,
             const std::function<void(TestEngine&)>& end, absl::StatusCode code) {
    TestEngineOptions options;
    options.pages = 40;
    options.engine.step_tokens_max = 64;
    TestEngine solo(options);
    const Record expected = solo.Run(LocalSpec(7, RandomPrompt(7, 60), 40));
    TestEngine engine(options);
    ASSERT_TRUE(engine.Submit(LocalSpec(7, RandomPrompt(7, 60), 40)).ok());
    until(engine);
    ASSERT_EQ(engine.record(1).finished, 0);
    end(engine);
    engine->Step();
    EXPECT_EQ(engine.record(1).finished, 1) << "not within one step";
    EXPECT_EQ(engine.record(1).status.code(), code) << engine.record(1).status;
    engine.Drain();
    EXPECT_EQ(engine.record(7).tokens, expected.tokens);
    EXPECT_EQ(engine.record(7).hashes, expected.hashes);
    EXPECT_EQ(engine.pool().counts().free, options.pages);
    EXPECT_FALSE(engine->HasWork());
  }
  static void SubmitVictim(TestEngine& engine, size_t prompt = 300) {
    SequenceSpec spec = LocalSpec(1, RandomPrompt(1, prompt), 100);
    spec.deadline = engine.clock.Now() + absl::Seconds(5);
    ASSERT_TRUE(engine.Submit(std::move(spec)).ok());
  }
  static void Cancel(TestEngine& engine) { engine->Cancel(SequenceId(1)); }
  static void PassDeadline(TestEngine& engine) { engine.clock.Advance(absl::Seconds(5)); }

  void CheckBoth(const std::function<void(TestEngine&)>& until) {
    Check(until, Cancel, absl::StatusCode::kCancelled);
    Check(until, PassDeadline, absl::StatusCode::kDeadlineExceeded);
  }
};

TEST_F(EngineCancel, Waiting) {
  CheckBoth([](TestEngine& engine) { SubmitVictim(engine); });
}

TEST_F(EngineCancel, InTheMiddleOfThePrompt) {
  CheckBoth([](TestEngine& engine) {
    SubmitVictim(engine);
    for (int i = 0; i < 4; ++i) engine->Step();
    ASSERT_EQ(engine.record(1).started, 1);
    ASSERT_TRUE(engine.record(1).tokens.empty());
  });
}

TEST_F(EngineCancel, Decoding) {
  CheckBoth([](TestEngine& engine) {
    SubmitVictim(engine);
    for (int i = 0; i < 12; ++i) engine->Step();
    ASSERT_FALSE(engine.record(1).tokens.empty());
  });
}

TEST_F(EngineCancel, Preempted) {
  CheckBoth([](TestEngine& engine) {
    SubmitVictim(engine, 1150);  // 36 pages, soon 37; the bystander grows to four of 40
    ASSERT_GT(engine->Step(), 0u);
    while (engine->load().waiting == 0) ASSERT_GT(engine->Step(), 0u);
    ASSERT_EQ(engine->load().running, 1u);
  });
}

TEST_F(EngineCancel, UnknownIdsAreIgnored) {
  TestEngine engine({});
  engine->Cancel(SequenceId(9));
  EXPECT_EQ(engine->Step(), 0u);
}

TEST(EngineInterrupt, StopsALonelyPrefillBetweenLayers) {
  TestEngineOptions options;
  options.model.layout.layers = 4;
  HookedRunner runner(options.model);
  TestEngine engine(options, &runner);
  int layers = 0;
  runner.between_layers = [&] {
    if (++layers == 2) std::thread([&] { engine->Interrupt(SequenceId(1)); }).join();
  };
  ASSERT_TRUE(engine.Submit(PrefillSpec(1, RandomPrompt(1, 100))).ok());
  engine->Step();
  EXPECT_EQ(layers, 2);
  EXPECT_TRUE(absl::IsCancelled(engine.record(1).status));
  engine->Cancel(SequenceId(1));
  EXPECT_FALSE(engine->HasWork());
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

TEST(EngineInterrupt, DoesNotTouchOthers) {
  TestEngineOptions options;
  HookedRunner runner(options.model);
  TestEngine engine(options, &runner);
  runner.between_layers = [&] { engine->Interrupt(SequenceId(1)); };
  // Two share the pass: it goes on. Afterwards 2 is alone, and 1 is not in the batch.
  ASSERT_TRUE(engine.Submit(PrefillSpec(1, RandomPrompt(1, 100))).ok());
  ASSERT_TRUE(engine.Submit(LocalSpec(2, RandomPrompt(2, 100), 5)).ok());
  engine.Drain();
  EXPECT_TRUE(engine.record(1).status.ok());
  EXPECT_TRUE(engine.record(2).status.ok());
}

// Races for ThreadSanitizer; whichever way they go, every sequence ends once.
TEST(EngineInterrupt, FromAnotherThread) {
  TestEngineOptions options;
  options.engine.step_tokens_max = 16;
  TestEngine engine(options);
  std::atomic<bool> stop{false};
  std::thread interrupter([&] {
    for (uint64_t i = 0; !stop.load(); ++i) engine->Interrupt(SequenceId(i % 20));
  });
  for (uint64_t id = 0; id < 20; ++id) {
    ASSERT_TRUE(engine.Submit(PrefillSpec(id, RandomPrompt(id, 200))).ok());
    engine->Step();
  }
  engine.Drain();
  stop.store(true);
  interrupter.join();
  for (uint64_t id = 0; id < 20; ++id) {
    EXPECT_EQ(engine.record(id).finished, 1);
    EXPECT_TRUE(engine.record(id).status.ok() || absl::IsCancelled(engine.record(id).status));
  }
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

// Overwrites the tag of one page that a sequence owns.
void CorruptPageOf(TestEngine& engine, uint64_t id) {
  for (uint32_t i = 0; i < engine.pool().size(); ++i) {
    auto* header = reinterpret_cast<kv::PageHeader*>(engine.pool().PageData(PageIndex(i)));
    if (header->generation == 0 || header->owner_low != id) continue;
    header->generation += 1000;
    return;
  }
  FAIL() << "sequence " << id << " has no page";
}

TEST(EngineTags, AStaleTagEndsThatSequenceOnly) {
  for (int steps : {1, 8}) {  // in the middle of the prompts, and among decodes
    TestEngineOptions options;
    options.engine.step_tokens_max = steps == 1 ? 200 : 512;
    TestEngine solo(options);
    const Record expected = solo.Run(LocalSpec(2, RandomPrompt(2, 150), 30));
    TestEngine engine(options);
    for (uint64_t id = 1; id <= 3; ++id)
      ASSERT_TRUE(engine.Submit(LocalSpec(id, RandomPrompt(id, 150), 30)).ok());
    for (int i = 0; i < steps; ++i) engine->Step();
    CorruptPageOf(engine, 1);
    const size_t tokens = engine.record(1).tokens.size();
    EXPECT_GT(engine->Step(), 0u);
    EXPECT_TRUE(absl::IsAborted(engine.record(1).status));
    EXPECT_TRUE(engine.record(1).stats.tag_mismatch);
    EXPECT_EQ(engine.record(1).tokens.size(), tokens) << "attended a page that was not its own";
    engine.Drain();
    EXPECT_EQ(engine.record(2).tokens, expected.tokens);
    EXPECT_EQ(engine.record(2).hashes, expected.hashes);
    EXPECT_TRUE(engine.record(3).status.ok());
    EXPECT_EQ(engine.pool().counts().free, options.pages);
  }
}

TEST(EngineTags, WhatADamagedSequenceComputedIsNotPublished) {
  TestEngine engine({});
  SequenceSpec spec = LocalSpec(1, RandomPrompt(1, 150), 100);
  spec.domain = TestDomain();
  ASSERT_TRUE(engine.Submit(std::move(spec)).ok());
  while (engine.record(1).tokens.size() < 50) engine->Step();
  CorruptPageOf(engine, 1);
  engine->Step();
  EXPECT_TRUE(absl::IsAborted(engine.record(1).status));
  EXPECT_EQ(engine.index().stats().blocks, 4u);  // the prompt's, published before
}

TEST(EngineTags, ADamagedCachedBlockIsComputedInstead) {
  TestEngine engine({});
  SequenceSpec spec = LocalSpec(1, RandomPrompt(1, 150));
  spec.domain = TestDomain();
  const Record expected = engine.Run(spec);
  uint32_t seen = 0;
  for (uint32_t i = 0; i < engine.pool().size(); ++i) {
    auto* header = reinterpret_cast<kv::PageHeader*>(engine.pool().PageData(PageIndex(i)));
    if (header->generation != 0 && ++seen == 3) header->generation += 1000;
  }
  spec.id = SequenceId(2);
  const Record again = engine.Run(spec);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.tokens, expected.tokens);
  EXPECT_EQ(again.hashes, expected.hashes);
  EXPECT_EQ(again.cached_tokens, 64u);
}

TEST(EngineFailures, ARunnerErrorEndsItsBatchOnly) {
  TestEngineOptions options;
  options.engine.batch_max = 2;
  TestEngine engine(options);
  for (uint64_t id = 1; id <= 3; ++id)
    ASSERT_TRUE(engine.Submit(LocalSpec(id, RandomPrompt(id, 50))).ok());
  engine.faults.Arm("engine.before_forward", [] { return absl::InternalError("broken"); });
  engine->Step();
  engine.faults.Disarm("engine.before_forward");
  EXPECT_EQ(engine.record(1).status, absl::InternalError("broken"));
  EXPECT_EQ(engine.record(2).status, absl::InternalError("broken"));
  engine.Drain();
  EXPECT_TRUE(engine.record(3).status.ok());
  EXPECT_EQ(engine.record(3).tokens.size(), 16u);
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

TEST(EngineSteps, OnePassPerStepWhateverTheBatch) {
  TestEngineOptions options;
  HookedRunner runner(options.model);
  TestEngine engine(options, &runner);
  for (uint64_t id = 0; id < 16; ++id)
    ASSERT_TRUE(engine.Submit(LocalSpec(id, RandomPrompt(id, 20), 10)).ok());
  engine.Drain();
  EXPECT_EQ(runner.passes, engine.steps);
  EXPECT_EQ(runner.passes, 10);
}

TEST(EngineSteps, PromptChunksKeepStreamsWithinTheTarget) {
  TestEngineOptions options;
  options.engine.step_tokens_max = 512;
  options.engine.itl_target = absl::Milliseconds(30);
  HookedRunner runner(options.model);
  TestEngine engine(options, &runner);
  absl::Duration longest;
  bool measured = false;
  // A machine that needs 2 ms a pass and 0.1 ms a token.
  runner.on_pass = [&](uint32_t tokens, size_t segments) {
    const absl::Duration time = absl::Milliseconds(2) + tokens * absl::Microseconds(100);
    engine.clock.Advance(time);
    if (measured && segments > 1) longest = std::max(longest, time);
  };
  ASSERT_TRUE(engine.Submit(LocalSpec(1, RandomPrompt(1, 600), 200)).ok());
  for (int i = 0; i < 5; ++i) engine->Step();
  measured = true;
  EXPECT_NEAR(engine->load().decode_step_ms, 2.1, 0.1);
  EXPECT_GT(engine->load().prefill_tokens_per_s, 5000);
  ASSERT_TRUE(engine.Submit(LocalSpec(2, RandomPrompt(2, 3000), 2)).ok());
  EXPECT_EQ(engine->load().prefill_tokens, 3000u);
  engine.Drain();
  EXPECT_GT(longest, absl::Milliseconds(20));
  EXPECT_LE(longest, absl::Milliseconds(32));
}

TEST(EngineSteps, ProgressIsTimed) {
  TestEngine engine({});
  engine.clock.Advance(absl::Seconds(3));
  engine->Step();
  EXPECT_EQ(engine->last_progress(), engine.clock.Now());
}

TEST(EngineReports, EveryPageOfEveryLayerOnce) {
  using Groups = std::set<std::pair<int, int>>;
  const std::pair<uint32_t, Groups> cases[] = {
      {0, {{0, 4}}}, {1, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}}, {3, {{0, 3}, {3, 4}}}};
  for (const auto& [group, layer_groups] : cases) {
    TestEngineOptions options;
    options.model.layout.layers = 4;
    options.engine.layer_group = group;
    options.engine.step_tokens_max = 50;
    TestEngine engine(options);
    for (uint32_t held : {0u, 2u, 99u}) {
      SequenceSpec spec = PrefillSpec(held, RandomPrompt(held, 200));
      spec.domain = TestDomain();
      spec.held_blocks = held;
      const Record cold = engine.Run(spec);
      spec.id = SequenceId(held + 1000);
      const Record warm = engine.Run(spec);
      EXPECT_EQ(warm.cached_tokens, 192u);
      std::map<std::pair<uint32_t, int>, int> expected;
      for (uint32_t block = held; block < 7; ++block) {
        for (int layer = 0; layer < 4; ++layer) expected[{block, layer}] = 1;
      }
      EXPECT_EQ(cold.reported, expected) << "group " << group << " held " << held;
      EXPECT_EQ(warm.reported, expected) << "group " << group << " held " << held;
      if (held == 0) {
        EXPECT_EQ(cold.layer_groups, layer_groups);
      }
      EXPECT_EQ(cold.prompt_done, 1);
      EXPECT_EQ(cold.tokens.size(), 1u);
    }
  }
}

TEST(EngineReports, NothingIsOfferedUnlessAsked) {
  TestEngine engine({});
  SequenceSpec spec = PrefillSpec(1, RandomPrompt(1, 100));
  spec.offer_pages = false;
  EXPECT_TRUE(engine.Run(spec).reported.empty());
}

TEST(EngineReports, APrefillWithOutputSamplesNothing) {
  TestEngine engine({});
  SequenceSpec spec = PrefillSpec(1, RandomPrompt(1, 100));
  spec.emitted = {1, 2, 3};
  const Record record = engine.Run(spec);
  EXPECT_EQ(record.prompt_done, 1);
  EXPECT_TRUE(record.tokens.empty());
  EXPECT_EQ(record.stats.computed_tokens, 100u);
  EXPECT_EQ(record.stats.recomputed_tokens, 0u);
}

TEST(EngineReports, TheFirstTokenMayBeTheLast) {
  TestEngine engine({});
  SequenceSpec spec = PrefillSpec(1, RandomPrompt(1, 100));
  spec.sampling.max_tokens = 1;
  EXPECT_EQ(engine.Run(spec).finish, request::FinishReason::kLength);
}

TEST(EngineReports, PinnedPagesOutliveTheSequence) {
  TestEngineOptions options;
  TestEngine engine(options);
  engine.events.keep_pins = true;
  Record record = engine.Run(PrefillSpec(1, RandomPrompt(1, 100)));
  EXPECT_EQ(engine.pool().counts().active, 4u);
  record.pins.clear();
  EXPECT_EQ(engine.pool().counts().free, options.pages);
}

}  // namespace
}  // namespace sluice::engine
