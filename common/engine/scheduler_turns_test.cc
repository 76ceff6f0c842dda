// Who gets a turn when more sequences run than a step has places.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/scheduler.h"

namespace sluice::engine {
namespace {

SequenceView Running(uint64_t arrival, uint32_t remaining = 1, int32_t priority = 0) {
  SequenceView view;
  view.arrival = arrival;
  view.remaining = remaining;
  view.priority = priority;
  return view;
}

// Streams and prompts that never end, stepped as the engine does.
struct Crowd {
  SchedulerState state;
  // By index into running.
  std::vector<uint32_t> steps_of;
  // Steps since the last one of its own; the most so far.
  std::vector<uint32_t> gap;
  std::vector<uint32_t> gap_max;
  uint64_t turns = 0;

  void Add(const SequenceView& view) {
    state.running.push_back(view);
    steps_of.push_back(0);
    gap.push_back(0);
    gap_max.push_back(0);
  }

  StepPlan Step() {
    StepPlan plan = PlanStep(state);
    EXPECT_TRUE(plan.preempt.empty() && plan.admit.empty());
    EXPECT_LE(plan.run.size(), state.limits.batch_max);
    for (uint32_t& steps : gap) ++steps;
    for (const StepPlan::Run& run : plan.run) {
      ++steps_of[run.sequence];
      gap[run.sequence] = 0;
      state.running[run.sequence].overtaken = 0;
      state.running[run.sequence].last_turn = ++turns;
    }
    for (size_t i = 0; i < gap.size(); ++i) gap_max[i] = std::max(gap_max[i], gap[i]);
    for (size_t i : plan.passed_over) ++state.running[i].overtaken;
    return plan;
  }
};

TEST(SchedulerTurns, MoreStreamsThanPlacesAllAdvance) {
  Crowd crowd;
  for (uint64_t i = 0; i < 70; ++i) crowd.Add(Running(i));
  for (int step = 0; step < 70; ++step) EXPECT_EQ(crowd.Step().run.size(), 64u);
  for (size_t i = 0; i < 70; ++i) {
    EXPECT_LE(crowd.gap_max[i], 1u) << i;
    EXPECT_EQ(crowd.steps_of[i], 64u) << i;
  }
}

TEST(SchedulerTurns, OnePlaceGoesRound) {
  Crowd crowd;
  crowd.state.limits.batch_max = 1;
  for (uint64_t i = 0; i < 40; ++i) crowd.Add(Running(i));
  for (size_t step = 0; step < 200; ++step) {
    const StepPlan plan = crowd.Step();
    ASSERT_EQ(plan.run.size(), 1u);
    EXPECT_EQ(plan.run[0].sequence, step % 40);
  }
}

TEST(SchedulerTurns, AHigherPriorityGoesFirstButNotForEver) {
  Crowd crowd;
  for (uint64_t i = 0; i < 64; ++i) crowd.Add(Running(i, 1, 1));
  for (uint64_t i = 64; i < 70; ++i) crowd.Add(Running(i, 1, 0));
  const uint32_t cycle = crowd.state.limits.overtaken_max + 1;
  for (uint32_t step = 0; step < 10 * cycle; ++step) crowd.Step();
  for (size_t i = 64; i < 70; ++i) EXPECT_EQ(crowd.steps_of[i], 10u) << i;
  for (size_t i = 0; i < 64; ++i) EXPECT_LE(crowd.gap_max[i], 1u) << i;
}

TEST(SchedulerTurns, AFloodOfLowerPriorityTakesAQuarterAtMost) {
  Crowd crowd;
  for (uint64_t i = 0; i < 64; ++i) crowd.Add(Running(1000 + i, 1, 1));
  for (uint64_t i = 0; i < 256; ++i) crowd.Add(Running(i, 1, 0));
  for (uint32_t step = 0; step < 100; ++step) {
    const StepPlan plan = crowd.Step();
    ASSERT_EQ(plan.run.size(), 64u);
    const auto low = std::count_if(plan.run.begin(), plan.run.end(),
                                   [](const StepPlan::Run& run) { return run.sequence >= 64; });
    EXPECT_LE(low, 16);
  }
  for (size_t i = 0; i < 64; ++i) EXPECT_LE(crowd.gap_max[i], 1u) << i;
  for (size_t i = 64; i < 320; ++i) EXPECT_LE(crowd.gap_max[i], 16u + 256 / 16) << i;
}

TEST(SchedulerTurns, PromptsWithoutTokensTakeNoPlaces) {
  Crowd crowd;
  crowd.state.limits.batch_max = 4;
  crowd.state.limits.step_tokens_max = 8;
  for (uint64_t i = 0; i < 8; ++i) crowd.Add(Running(i, 1000));
  for (uint64_t i = 8; i < 11; ++i) crowd.Add(Running(i));
  for (int step = 0; step < 100; ++step) EXPECT_EQ(crowd.Step().run.size(), 4u);
  for (size_t i = 8; i < 11; ++i) EXPECT_EQ(crowd.steps_of[i], 100u) << i;
  EXPECT_EQ(crowd.steps_of[0], 100u) << "first come, first served";
}

TEST(SchedulerTurns, APromptTakesTurnsWithDecodes) {
  Crowd crowd;
  crowd.state.limits.batch_max = 4;
  for (uint64_t i = 0; i < 10; ++i) crowd.Add(Running(i));
  crowd.Add(Running(10, 1000));
  for (int step = 0; step < 110; ++step) EXPECT_EQ(crowd.Step().run.size(), 4u);
  for (size_t i = 0; i < 11; ++i) {
    EXPECT_LE(crowd.gap_max[i], 2u) << i;
    EXPECT_NEAR(crowd.steps_of[i], 40, 4) << i;  // the prompt's turn counts as the last of its step
  }
}

TEST(SchedulerTurns, APromptBehindMoreImportantOnesAdvances) {
  Crowd crowd;
  crowd.state.limits.step_tokens_max = 8;
  crowd.Add(Running(0, 1000, 0));
  crowd.Add(Running(1, 1000, 1));
  crowd.Add(Running(2, 1000, 1));
  const uint32_t cycle = crowd.state.limits.overtaken_max + 1;
  for (uint32_t step = 0; step < 10 * cycle; ++step) crowd.Step();
  EXPECT_EQ(crowd.steps_of[0], 10u);
  EXPECT_EQ(crowd.steps_of[1], 10 * (cycle - 1));
  EXPECT_EQ(crowd.steps_of[2], 0u) << "it stands behind its elder, which comes to an end";
}

}  // namespace
}  // namespace sluice::engine
