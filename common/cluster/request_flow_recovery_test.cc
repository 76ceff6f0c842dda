// Deaths of workers, workers that are missing, readers that are slow, deadlines that are too near.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/request_flow_test_support.h"

namespace sluice::cluster {
namespace {

// The connection of the worker that decodes breaks, as it does when the process dies.
absl::Status Died() { return ConnectionBroken(absl::UnavailableError("killed")); }

TEST_F(RequestFlowTest, ARequestThatWasAtTwoDeathsAloneIsNotMovedAgain) {
  auto flow = Start();
  Serve(3);
  for (int deaths = 0; deaths < 2; ++deaths) {
    ASSERT_FALSE(events_.done) << events_.status;
    client_.decodes.back().events->OnEnd(Died(), {});
    world_.RunFor(absl::Seconds(1));
  }
  ASSERT_TRUE(events_.done);
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kPoisoned);
  EXPECT_EQ(events_.summary.deaths,
            (std::vector<WorkerId>{client_.decodes[0].worker, client_.decodes[1].worker}));
  EXPECT_EQ(client_.decodes.size(), 2u);
  EXPECT_EQ(events_.tokens.size(), 3u);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, AnswersOfLivingWorkersAreNoDeaths) {
  auto flow = Start();
  Serve(3);
  for (int failures = 0; failures < 3; ++failures) {
    client_.decodes.back().events->OnEnd(absl::UnavailableError("I am draining"), {});
    world_.RunFor(absl::Seconds(1));
    ASSERT_FALSE(events_.done) << events_.status;
  }
}

TEST_F(RequestFlowTest, WorkersThatDrainedHaveNotDied) {
  auto flow = Start();
  Serve(3);
  for (const char* next : {"d2", "d3", "d4"}) {
    ShowWorkers({"p0", "p1", client_.decodes.back().worker.value()}, /*draining=*/true);
    ShowWorkers({"p0", "p1", next});
    flow->OnWorkerLost(client_.decodes.back().worker);
    world_.RunFor(absl::Seconds(1));
    ASSERT_FALSE(events_.done) << events_.status;
  }
}

TEST_F(RequestFlowTest, WhoSawADeathTogetherIsTriedApart) {
  ShowWorkers({"p0", "d0"});
  std::vector<RecordingEvents> events(2);
  const auto flows = StartAll(events, 100, [this] {
    world_.RunFor(absl::ZeroDuration());
    Serve(2);
  });
  ShowWorkers({"p0", "d1", "d2"});
  for (const auto& flow : flows) flow->OnWorkerLost(WorkerId("d0"));
  world_.RunFor(absl::Milliseconds(500));
  ASSERT_EQ(client_.decodes.size(), 4u);
  EXPECT_NE(client_.decodes[2].worker, client_.decodes[3].worker);
  // The one that kills its worker is known by that; the other one, alone on its worker, goes on.
  client_.decodes[2].events->OnEnd(Died(), {});
  world_.RunFor(absl::Milliseconds(500));
  EXPECT_NE(events[0].done, events[1].done);
  EXPECT_EQ((events[0].done ? events[0] : events[1]).summary.gave_up, GaveUp::kPoisoned);
}

TEST_F(RequestFlowTest, WithoutAWorkerForEachTheyTakeTurns) {
  ShowWorkers({"p0", "d0"});
  std::vector<RecordingEvents> events(2);
  const auto flows = StartAll(events, 100, [this] {
    world_.RunFor(absl::ZeroDuration());
    Serve(1);
  });
  ShowWorkers({"p0", "d1"});
  for (const auto& flow : flows) flow->OnWorkerLost(WorkerId("d0"));
  world_.RunFor(absl::Milliseconds(500));
  ASSERT_EQ(client_.decodes.size(), 3u) << "the second one waits";
  Serve(5);
  world_.RunFor(absl::Milliseconds(200));
  ASSERT_EQ(client_.decodes.size(), 4u) << "the first one made progress";
  EXPECT_EQ(client_.decodes[3].worker, WorkerId("d1"));
}

TEST_F(RequestFlowTest, WithoutAWorkerAFlowEndsSoon) {
  auto flow = Start();
  Serve(3);
  ShowWorkers({"p0", "p1"});
  flow->OnWorkerLost(client_.decodes[0].worker);
  world_.RunFor(absl::Milliseconds(300));
  EXPECT_FALSE(events_.done) << "one may be on its way back";
  world_.RunFor(absl::Milliseconds(600));
  ASSERT_TRUE(events_.done);
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kNoWorker);
  EXPECT_THAT(std::string(events_.status.message()),
              ::testing::HasSubstr("no decode worker is ready"));
}

TEST_F(RequestFlowTest, AWorkerThatComesBackInTimeIsUsed) {
  auto flow = Start();
  Serve(3);
  ShowWorkers({"p0", "p1"});
  flow->OnWorkerLost(client_.decodes[0].worker);
  world_.RunFor(absl::Milliseconds(300));
  ShowWorkers({"p0", "p1", "d5"});
  world_.RunFor(absl::Milliseconds(300));
  Serve(8);
  EXPECT_TRUE(events_.status.ok()) << events_.status;
  EXPECT_EQ(events_.tokens, AllTokens());
}

TEST_F(RequestFlowTest, APausedSequenceHoldsNothingAndGoesOnAtItsNextPosition) {
  auto flow = Start();
  Serve(3);
  flow->Pause();
  flow->Pause();
  EXPECT_EQ(client_.running.size(), 1u) << "but for the prefill call, which has ended by itself";
  ExpectNothingHeld();
  world_.RunFor(absl::Seconds(60));
  EXPECT_EQ(client_.decodes.size(), 1u);
  client_.decodes[0].events->OnToken(3, Token(103), FinishReason::kNone);  // late
  EXPECT_EQ(events_.tokens.size(), 3u);
  flow->Resume();
  flow->Resume();
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.decodes.size(), 2u);
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
  EXPECT_TRUE(events_.status.ok()) << events_.status;
  EXPECT_EQ(events_.summary.migrations, 0u);
}

TEST_F(RequestFlowTest, APauseFromWithinATokenDropsThoseThatOvertookIt) {
  auto flow = Start();
  client_.decodes[0].events->OnStarted(0, 0, "test");
  for (uint32_t p = 1; p < 4; ++p)
    client_.decodes[0].events->OnToken(p, Token(100 + static_cast<int>(p)), FinishReason::kNone);
  events_.on_token = [&] {
    if (events_.tokens.size() == 2) flow->Pause();
  };
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  EXPECT_EQ(events_.tokens.size(), 2u);
  EXPECT_TRUE(client_.running.empty());
  flow->Resume();
  world_.RunFor(absl::Seconds(1));
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
}

TEST_F(RequestFlowTest, APauseDuringPlacementIsOnePlacementLater) {
  FlowSpec spec;
  spec.context.deadline = absl::InfiniteFuture();
  spec.prompt = {1, 2, 3};
  spec.sampling.max_tokens = 8;
  auto flow = RequestFlow::Create(env_, std::move(spec), events_);
  flow->Start();
  flow->Pause();
  flow->Resume();
  world_.RunFor(absl::Seconds(1));
  EXPECT_EQ(client_.decodes.size(), 1u);
}

TEST_F(RequestFlowTest, ARetryBeforeTheFirstTokenMayUseOtherNumerics) {
  numerics_ = {1, 1};
  ShowWorkers({"p0", "d0"});
  auto flow = Start();
  numerics_ = {2, 2};
  ShowWorkers({"p5", "d5"});
  client_.prefills[0].events->OnEnd(absl::UnavailableError("draining"), {}, 0);
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.decodes.size(), 2u);
  EXPECT_EQ(events_.placed, 2) << "the stream has the numerics of the second attempt";
  Serve(3);
  numerics_ = {1, 1};
  ShowWorkers({"p6", "d6"});
  flow->OnWorkerLost(WorkerId("d5"));
  world_.RunFor(absl::Seconds(1));
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kNoWorker) << "after a token nothing else will do";
}

TEST_F(RequestFlowTest, ADeadlineThatCannotBeMetIsRefusedAtOnce) {
  LoadReport slow;
  slow.prefill_tokens_per_s = 1;  // 5 s for the prompt
  for (const char* worker : {"p0", "p1"})
    directory_.ReportLoad(WorkerId(worker), Incarnation(1), slow);
  auto flow = Start(absl::Seconds(2));
  ASSERT_TRUE(events_.done);
  EXPECT_TRUE(absl::IsDeadlineExceeded(events_.status)) << events_.status;
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kTooLate);
  EXPECT_TRUE(client_.admits.empty());
  events_ = RecordingEvents();
  auto doubtful = Start(absl::Seconds(3));
  EXPECT_FALSE(events_.done) << "rates are no promises";
}

TEST_F(RequestFlowTest, APairThatCannotMovePagesIsLeft) {
  ShowWorkers({"p0", "d0"});
  auto flow = Start();
  for (int failures = 0; failures < 2; ++failures) {
    EXPECT_TRUE(directory_.BrokenPairs().empty());
    client_.decodes.back().events->OnEnd(absl::AbortedError("a piece was damaged"), {});
    client_.prefills.back().events->OnEnd(absl::AbortedError("the taker gave up"), {}, 0);
    if (failures == 0) world_.RunFor(absl::Seconds(1));
  }
  const WorkerPair pair(WorkerId("p0"), WorkerId("d0"));
  EXPECT_EQ(directory_.BrokenPairs(), (std::vector<WorkerPair>{pair}));
  ShowWorkers({"p0", "p1", "d0"});
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.prefills.size(), 3u);
  EXPECT_EQ(client_.prefills[2].worker, WorkerId("p1"));
}

}  // namespace
}  // namespace sluice::cluster
