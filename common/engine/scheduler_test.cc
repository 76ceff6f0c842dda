#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/random.h"

namespace sluice::engine {
namespace {

SequenceView Decode(uint64_t arrival, uint32_t missing = 0, uint32_t freeable = 4) {
  SequenceView view;
  view.arrival = arrival;
  view.pages_missing = missing;
  view.pages_freeable = freeable;
  return view;
}

SequenceView Prompt(uint64_t arrival, uint32_t remaining, uint32_t missing = 0) {
  SequenceView view;
  view.arrival = arrival;
  view.remaining = remaining;
  view.pages_missing = missing;
  view.pages_freeable = 4;
  return view;
}

std::vector<std::pair<size_t, uint32_t>> Runs(const StepPlan& plan) {
  std::vector<std::pair<size_t, uint32_t>> runs;
  for (const StepPlan::Run& run : plan.run) runs.emplace_back(run.sequence, run.tokens);
  return runs;
}

using RunList = std::vector<std::pair<size_t, uint32_t>>;
using Indices = std::vector<size_t>;

TEST(Scheduler, DecodesComeBeforePrompts) {
  SchedulerState state;
  state.limits.step_tokens_max = 10;
  state.running = {Prompt(0, 100), Decode(1), Decode(2)};
  EXPECT_EQ(Runs(PlanStep(state)), (RunList{{1, 1}, {2, 1}, {0, 8}}));
}

TEST(Scheduler, PromptsShareTheBudgetInOrderOfPriorityThenArrival) {
  SchedulerState state;
  state.limits.step_tokens_max = 100;
  state.running = {Prompt(5, 60), Prompt(3, 60), Prompt(9, 30)};
  state.running[2].priority = 1;
  EXPECT_EQ(Runs(PlanStep(state)), (RunList{{2, 30}, {1, 60}, {0, 10}}));
}

TEST(Scheduler, ChunkKeepsStreamsWithinTheTarget) {
  SchedulerState state;
  state.limits.step_tokens_max = 512;
  state.limits.itl_target = absl::Milliseconds(50);
  state.prefill_tokens_per_s = 2000;
  state.decode_step = absl::Milliseconds(10);
  EXPECT_EQ(ChunkTokens(state), 80u);  // 40 ms at 2 tokens a millisecond
  state.running = {Prompt(0, 1000), Decode(1)};
  EXPECT_EQ(Runs(PlanStep(state)), (RunList{{1, 1}, {0, 80}}));
  state.running[1].stream = false;  // nobody waits for that token
  EXPECT_EQ(Runs(PlanStep(state)), (RunList{{1, 1}, {0, 511}}));
  state.decode_step =
      absl::Milliseconds(70);  // the target cannot be met, but prompts must not starve
  EXPECT_EQ(ChunkTokens(state), state.limits.chunk_tokens_min);
  state.prefill_tokens_per_s = 0;
  EXPECT_EQ(ChunkTokens(state), 512u);
}

TEST(Scheduler, AdmitsWhatFitsWithAPageOfGrowthForEveryStream) {
  SchedulerState state;
  state.running = {Decode(0), Decode(1)};
  state.waiting = {Prompt(2, 64, 3)};
  state.pages_available = 4;
  EXPECT_EQ(PlanStep(state).admit, Indices{});
  state.pages_available = 5;
  EXPECT_EQ(PlanStep(state).admit, Indices{0});
  state.running.clear();
  state.pages_available = 3;
  EXPECT_EQ(PlanStep(state).admit, Indices{0});
}

TEST(Scheduler, ALargePromptIsPassedOverButNotForEver) {
  SchedulerState state;
  state.limits.overtaken_max = 3;
  state.running = {Prompt(0, 10)};
  state.running[0].stream = false;
  state.waiting = {Prompt(1, 500, 20), Prompt(2, 30, 1)};
  state.pages_available = 5;
  state.waiting[0].overtaken = 2;
  EXPECT_EQ(PlanStep(state).admit, Indices{1});
  state.waiting[0].overtaken = 3;
  EXPECT_EQ(PlanStep(state).admit, Indices{});
  state.pages_available = 21;
  EXPECT_EQ(PlanStep(state).admit, (Indices{0}));
  state.pages_available = 22;  // 20 for the first, 1 of growth for it, 1 for the second
  EXPECT_EQ(PlanStep(state).admit, (Indices{0, 1}));
}

TEST(Scheduler, AnAgedSequenceGoesBeforeHigherPriorities) {
  SchedulerState state;
  state.limits.batch_max = 1;
  state.pages_available = 100;
  state.waiting = {Prompt(1, 10, 1), Prompt(2, 10, 1)};
  state.waiting[1].priority = 5;
  EXPECT_EQ(PlanStep(state).admit, Indices{1});
  state.waiting[0].overtaken = state.limits.overtaken_max;
  EXPECT_EQ(PlanStep(state).admit, Indices{0});
}

TEST(Scheduler, ADecodeWithItsPagesIsAdmittedWhateverThePagesOfOthers) {
  SchedulerState state;
  state.waiting = {Prompt(0, 100, 9), Decode(1)};
  state.waiting[0].overtaken = state.limits.overtaken_max;
  state.running = {Decode(2, 1)};
  state.running[0].readmitted = true;
  EXPECT_EQ(PlanStep(state).admit, Indices{1});
}

TEST(Scheduler, NobodyIsAdmittedToPagesWhileAStreamLacksOne) {
  SchedulerState state;
  state.running = {Decode(0, 5)};
  state.waiting = {Prompt(1, 10, 1)};
  state.pages_available = 4;
  const StepPlan plan = PlanStep(state);
  EXPECT_TRUE(plan.admit.empty() && plan.run.empty() && plan.preempt.empty());
}

TEST(Scheduler, AdmissionFillsTheBatch) {
  SchedulerState state;
  state.limits.batch_max = 3;
  state.pages_available = 100;
  for (uint64_t i = 0; i < 5; ++i) state.waiting.push_back(Prompt(i, 5, 1));
  EXPECT_EQ(PlanStep(state).admit, (Indices{0, 1, 2}));
  state.limits.step_tokens_max = 2;
  EXPECT_EQ(PlanStep(state).admit, Indices{0});  // it takes both tokens
  state.limits = {};
  state.limits.batch_max = 1;
  state.running = {Decode(9)};
  EXPECT_EQ(PlanStep(state).admit, Indices{});
  state.waiting[2].overtaken = state.limits.overtaken_max;
  EXPECT_EQ(PlanStep(state).admit, Indices{2});
}

TEST(Scheduler, TheBatchIsBoundedAndGoesByPriorityThenAge) {
  SchedulerState state;
  state.limits.batch_max = 3;
  for (uint64_t i = 0; i < 5; ++i) state.running.push_back(Decode(10 - i));
  state.running[1].priority = 1;
  EXPECT_EQ(Runs(PlanStep(state)), (RunList{{1, 1}, {4, 1}, {3, 1}}));
  state.running[4] = Prompt(6, 20);
  EXPECT_EQ(Runs(PlanStep(state)), (RunList{{1, 1}, {3, 1}, {4, 20}}));
  state.running[4].pages_missing = 1;  // who cannot run takes no place
  state.running[4].pages_freeable = 0;
  for (SequenceView& view : state.running) view.readmitted = true;
  EXPECT_EQ(Runs(PlanStep(state)), (RunList{{1, 1}, {3, 1}, {2, 1}}));
}

TEST(Scheduler, VictimsAreBorrowersThenLowPriorityThenYoung) {
  SchedulerState state;
  state.running = {Decode(0, 1), Decode(1), Decode(2), Decode(3)};
  state.running[1].borrowing = true;
  state.running[2].priority = -1;
  EXPECT_EQ(PlanStep(state).preempt, Indices{1});
  state.running[1].borrowing = false;
  EXPECT_EQ(PlanStep(state).preempt, Indices{2});
  state.running[2].priority = 0;
  EXPECT_EQ(PlanStep(state).preempt, Indices{3});
  state.running[0].pages_missing = 9;  // one victim frees 4
  EXPECT_EQ(PlanStep(state).preempt, (Indices{3, 2, 1}));
  state.running[0].pages_missing = 13;  // in vain: nobody is preempted
  EXPECT_TRUE(PlanStep(state).preempt.empty());
}

TEST(Scheduler, TheYoungestWaitsInsteadOfPreemptingItsElders) {
  SchedulerState state;
  state.running = {Decode(0), Decode(1, 1)};
  const StepPlan plan = PlanStep(state);
  EXPECT_TRUE(plan.preempt.empty());
  EXPECT_EQ(Runs(plan), (RunList{{0, 1}}));
}

TEST(Scheduler, AReadmittedStreamIsSafeUntilItProgresses) {
  SchedulerState state;
  state.running = {Decode(0, 1), Decode(1), Decode(2)};
  state.running[2].readmitted = true;
  EXPECT_EQ(PlanStep(state).preempt, Indices{1});
  state.running[1].readmitted = true;
  const StepPlan plan = PlanStep(state);
  EXPECT_TRUE(plan.preempt.empty());
  EXPECT_EQ(Runs(plan), (RunList{{1, 1}, {2, 1}}));
}

// A world of sequences and pages around the scheduler: what the engine does, without an engine.
class World {
 public:
  static constexpr uint32_t kPageTokens = 4;

  World(uint64_t seed, SchedulerLimits limits, uint32_t pages)
      : random_(seed), limits_(limits), pages_(pages) {}

  void Arrive() {
    Seq s;
    s.view.arrival = arrivals_++;
    s.prompt = 1 + static_cast<uint32_t>(random_.Below((pages_ - 1) * kPageTokens / 2));
    const uint32_t room = pages_ * kPageTokens - s.prompt - 1;
    s.output = 1 + static_cast<uint32_t>(random_.Below(room));
    s.view.priority = static_cast<int32_t>(random_.Below(3));
    s.view.borrowing = random_.Below(4) == 0;
    s.view.stream = random_.Below(3) > 0;
    if (!s.view.stream) s.output = 1;
    s.tokens = s.prompt;
    // A decode that comes with its pages, if there are enough.
    if (random_.Below(3) == 0 && s.view.stream && Used() + PagesFor(s.prompt) <= pages_) {
      s.computed = s.prompt;
      s.tokens = s.prompt + 1;
      s.output += 1;
      s.pages = PagesFor(s.prompt);
    }
    waiting_.push_back(s);
  }

  // One step; false when nothing was computed.
  bool Step() {
    for (Seq& s : waiting_) s.view.blocked = false;
    StepPlan plan;
    for (int round = 0;; ++round) {
      EXPECT_LT(round, 1000) << "planning does not end";
      plan = PlanStep(State());
      if (!plan.preempt.empty()) {
        Preempt(plan.preempt);
      } else if (!plan.admit.empty()) {
        Admit(plan.admit);
      } else {
        break;
      }
    }
    return Run(plan);
  }

  bool Done() const { return running_.empty() && waiting_.empty(); }
  size_t finished() const { return finished_; }
  uint64_t preemptions() const { return preemptions_; }
  std::string Describe() const {
    return std::to_string(running_.size()) + " run, " + std::to_string(waiting_.size()) + " wait";
  }

 private:
  struct Seq {
    SequenceView view;
    uint32_t prompt = 0, output = 0, tokens = 0, computed = 0, pages = 0;
  };
  static uint32_t PagesFor(uint32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  uint32_t Used() const {
    uint32_t used = 0;
    for (const auto* list : {&running_, &waiting_}) {
      for (const Seq& s : *list) used += s.pages;
    }
    return used;
  }

  SchedulerState State() {
    SchedulerState state;
    state.limits = limits_;
    state.prefill_tokens_per_s = 1000;
    state.decode_step = absl::Milliseconds(5);
    EXPECT_LE(Used(), pages_);
    state.pages_available = pages_ - Used();
    for (auto* list : {&running_, &waiting_}) {
      for (Seq& s : *list) {
        s.view.remaining = s.tokens - s.computed;
        s.view.pages_missing = PagesFor(s.tokens) - s.pages;
        if (list == &waiting_ && s.pages > 0) s.view.pages_missing = 0;
        s.view.pages_freeable = s.pages;
        (list == &running_ ? state.running : state.waiting).push_back(s.view);
      }
    }
    return state;
  }

  void Preempt(const std::vector<size_t>& indices) {
    std::vector<bool> gone(running_.size());
    for (size_t i : indices) {
      EXPECT_FALSE(running_[i].view.readmitted) << "preempted before it made progress";
      gone[i] = true;
      ++preemptions_;
    }
    std::vector<Seq> rest;
    for (size_t i = 0; i < running_.size(); ++i) {
      if (!gone[i]) {
        rest.push_back(running_[i]);
        continue;
      }
      Seq s = running_[i];
      s.computed = s.pages = s.view.overtaken = 0;
      s.view.readmitted = true;
      s.view.blocked = true;
      waiting_.push_back(s);
    }
    running_ = rest;
  }

  void Admit(const std::vector<size_t>& indices) {
    std::vector<bool> taken(waiting_.size());
    for (size_t i : indices) {
      Seq s = waiting_[i];
      EXPECT_FALSE(s.view.blocked);
      taken[i] = true;
      if (s.pages == 0) s.pages = PagesFor(s.tokens);
      for (Seq& other : waiting_) {
        const bool before =
            other.view.priority > s.view.priority || other.view.arrival < s.view.arrival;
        if (before) ++other.view.overtaken;
      }
      s.view.overtaken = 0;
      s.view.last_turn = ++turns_;
      running_.push_back(s);
    }
    std::vector<Seq> rest;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      if (!taken[i]) rest.push_back(waiting_[i]);
    }
    waiting_ = rest;
  }

  bool Run(const StepPlan& plan) {
    uint32_t total = 0;
    std::map<size_t, uint32_t> tokens;
    for (const StepPlan::Run& run : plan.run) {
      EXPECT_TRUE(tokens.emplace(run.sequence, run.tokens).second) << "planned twice";
      EXPECT_GT(run.tokens, 0u);
      total += run.tokens;
    }
    EXPECT_LE(total, limits_.step_tokens_max);
    EXPECT_LE(plan.run.size(), limits_.batch_max);
    for (size_t i : plan.passed_over) {
      EXPECT_FALSE(tokens.contains(i)) << "runs and is passed over";
      ++running_[i].view.overtaken;
    }
    std::vector<Seq> rest;
    for (size_t i = 0; i < running_.size(); ++i) {
      Seq s = running_[i];
      const auto found = tokens.find(i);
      if (found != tokens.end()) {
        s.view.overtaken = 0;
        s.view.last_turn = ++turns_;
        EXPECT_LE(found->second, s.tokens - s.computed);
        s.pages = std::max(s.pages, PagesFor(s.tokens));
        s.computed += found->second;
        if (s.computed == s.tokens) {
          ++s.tokens;
          s.view.readmitted = false;
        }
      }
      if (s.tokens - s.prompt >= s.output) {
        ++finished_;
      } else {
        rest.push_back(s);
      }
    }
    running_ = rest;
    EXPECT_LE(Used(), pages_) << "more pages than exist";
    return total > 0;
  }

  SeededRandom random_;
  const SchedulerLimits limits_;
  const uint32_t pages_;
  std::vector<Seq> running_;
  std::vector<Seq> waiting_;
  uint64_t arrivals_ = 0;
  uint64_t turns_ = 0;
  uint64_t preemptions_ = 0;
  size_t finished_ = 0;
};

TEST(SchedulerProperties, EverySequenceFinishes) {
  uint64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SeededRandom random(seed + 1000);
    SchedulerLimits limits;
    limits.step_tokens_max = 1 + static_cast<uint32_t>(random.Below(64));
    limits.batch_max = 1 + static_cast<uint32_t>(random.Below(12));
    limits.chunk_tokens_min = 1 + static_cast<uint32_t>(random.Below(8));
    limits.overtaken_max = 1 + static_cast<uint32_t>(random.Below(8));
    World world(seed, limits, 4 + static_cast<uint32_t>(random.Below(30)));
    const size_t count = 1 + random.Below(30);
    size_t arrived = 0;
    for (int steps = 0; arrived < count || !world.Done(); ++steps) {
      ASSERT_LT(steps, 100000) << world.Describe();
      if (arrived < count && random.Below(4) == 0) {
        world.Arrive();
        ++arrived;
      }
      const bool idle = world.Done();
      ASSERT_TRUE(world.Step() || idle) << "nothing advances: " << world.Describe();
      if (HasFailure()) return;
    }
    EXPECT_EQ(world.finished(), count);
    preemptions += world.preemptions();
  }
  EXPECT_GT(preemptions, 100u) << "the worlds are too roomy to test anything";
}

}  // namespace
}  // namespace sluice::engine
