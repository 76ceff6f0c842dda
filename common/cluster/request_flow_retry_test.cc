// What happens when workers fail, refuse or are missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/request_flow_test_support.h"

namespace sluice::cluster {
namespace {

TEST_F(RequestFlowTest, ADecodeWorkerThatGaveUpFailsTheAttemptOnceThePrefillWorkerSaysNoEnd) {
  for (const bool first_token : {false, true}) {
    events_ = RecordingEvents();
    const size_t before = client_.prefills.size();
    auto flow = Start();
    client_.decodes.back().events->OnEnd(absl::AbortedError("a piece was damaged"), {});
    EXPECT_EQ(client_.prefills.size(), before + 1);
    if (first_token) {
      client_.prefills.back().events->OnFirstToken(Token(100), FinishReason::kNone);
    } else {
      client_.prefills.back().events->OnEnd(absl::AbortedError("the taker gave up"), {}, 0);
    }
    world_.RunFor(absl::Seconds(1));
    ASSERT_EQ(client_.prefills.size(), before + 2);
    Serve(8);
    EXPECT_EQ(events_.tokens, AllTokens());
    EXPECT_TRUE(events_.status.ok());
  }
}

TEST_F(RequestFlowTest, APrefillFailureBeforeTheFirstTokenIsRetriedElsewhere) {
  auto flow = Start();
  const WorkerId first = client_.prefills[0].worker;
  client_.prefills[0].events->OnEnd(absl::UnavailableError("gone"), {}, 0);
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.prefills.size(), 2u);
  EXPECT_NE(client_.prefills[1].worker, first);
  EXPECT_GT(client_.prefills[1].call.context.attempt, client_.prefills[0].call.context.attempt);
  client_.decodes[0].events->OnToken(1, Token(66),
                                     FinishReason::kNone);  // late, of the first attempt
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
  EXPECT_EQ(events_.summary.attempts, 2u);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, EverythingThatADeadWorkerHeldIsRetried) {
  constexpr size_t kFlows = 100;
  std::vector<RecordingEvents> events(kFlows);
  const auto flows = StartAll(events, 8);
  world_.RunFor(absl::ZeroDuration());
  ASSERT_EQ(client_.prefills.size(), kFlows);
  for (size_t i = 0; i < kFlows; ++i)
    client_.prefills[i].events->OnEnd(absl::UnavailableError("connection reset"), {}, 0);
  world_.RunFor(absl::Seconds(1));
  for (const RecordingEvents& each : events) EXPECT_FALSE(each.done) << each.status;
  EXPECT_EQ(client_.prefills.size(), 2 * kFlows);
}

TEST_F(RequestFlowTest, AStreamContinuesOnAnotherDecodeWorkerAtItsNextPosition) {
  auto flow = Start();
  Serve(4);
  const WorkerId first = client_.decodes[0].worker;
  client_.decodes[0].events->OnEnd(absl::UnavailableError("killed"), {});
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.decodes.size(), 2u);
  EXPECT_NE(client_.decodes[1].worker, first);
  EXPECT_EQ(client_.decodes[1].call.emitted, (std::vector<request::TokenId>{100, 101, 102, 103}));
  EXPECT_EQ(client_.prefills[1].call.emitted.size(), 4u);
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
  EXPECT_TRUE(events_.status.ok());
  EXPECT_EQ(events_.summary.migrations, 1u);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, APrefillWorkerThatDiesAfterTheTransferIsNotMissed) {
  auto flow = Start();
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  client_.decodes[0].events->OnStarted(0, 0, "test");
  client_.prefills[0].events->OnEnd(absl::UnavailableError("killed"), {}, 0);
  EXPECT_EQ(client_.running.size(), 2u);
  for (uint32_t p = 1; p < 8; ++p) {
    client_.decodes[0].events->OnToken(p, Token(100 + static_cast<int>(p)),
                                       p == 7 ? FinishReason::kLength : FinishReason::kNone);
  }
  EXPECT_EQ(events_.tokens, AllTokens());
  EXPECT_EQ(events_.summary.attempts, 1u);
}

TEST_F(RequestFlowTest, ALostWorkerFailsItsStreamsAtOnce) {
  auto flow = Start();
  Serve(3);
  flow->OnWorkerLost(client_.decodes[0].worker);
  world_.RunFor(absl::Seconds(1));
  EXPECT_EQ(client_.decodes.size(), 2u);
  flow->OnWorkerLost(WorkerId("nobody"));
  EXPECT_FALSE(events_.done);
}

TEST_F(RequestFlowTest, AWorkerLostAfterItsStreamFailedFailsNothingElse) {
  auto flow = Start();
  const WorkerId worker = client_.decodes[0].worker;
  client_.decodes[0].events->OnEnd(absl::UnavailableError("broken"), {});
  flow->OnWorkerLost(worker);
  world_.RunFor(absl::Seconds(1));
  EXPECT_EQ(client_.decodes.size(), 2u) << "one failure is one retry";
  Serve(8);
  EXPECT_TRUE(events_.status.ok()) << events_.status;
  EXPECT_EQ(events_.summary.attempts, 2u);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, APrefillWorkerLostBeforeItGaveACreditIsNotWaitedFor) {
  client_.hold_admits = true;
  auto flow = Start();
  ASSERT_EQ(client_.admits.size(), 1u);
  flow->OnWorkerLost(client_.admits[0]);
  client_.hold_admits = false;
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.admits.size(), 2u);
  EXPECT_NE(client_.admits[1], client_.admits[0]);
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
  client_.held_admits[0]();  // the answer of the first, late
  world_.RunFor(absl::Seconds(1));
  EXPECT_TRUE(client_.credits.empty());
}

TEST_F(RequestFlowTest, ACreditOfAFailedAttemptGoesBack) {
  client_.hold_admits = true;
  auto flow = Start();
  ASSERT_EQ(client_.held_admits.size(), 1u);
  for (const char* decode : {"d0", "d1"}) flow->OnWorkerLost(WorkerId(decode));
  client_.held_admits[0]();
  EXPECT_TRUE(client_.credits.empty());
  EXPECT_TRUE(client_.reserves.empty());
  client_.hold_admits = false;
  world_.RunFor(absl::Seconds(1));
  Serve(8);
  EXPECT_TRUE(events_.status.ok()) << events_.status;
  EXPECT_EQ(client_.decodes.size(), 1u);
}

TEST_F(RequestFlowTest, RefusalsForLackOfRoomWaitWithoutCountingAsAttempts) {
  client_.next_admit = absl::ResourceExhaustedError("no credit");
  auto flow = Start();
  world_.RunFor(absl::Seconds(5));
  EXPECT_GT(client_.admits.size(), 10u);
  EXPECT_FALSE(events_.done);
  client_.next_admit = LeaseId();
  client_.next_reserve = absl::ResourceExhaustedError("no pages");
  world_.RunFor(absl::Seconds(5));
  EXPECT_TRUE(client_.credits.empty());
  client_.next_reserve = absl::OkStatus();
  world_.RunFor(absl::Seconds(1));
  Serve(8);
  EXPECT_TRUE(events_.status.ok());
  EXPECT_EQ(events_.summary.attempts, 1u);
}

TEST_F(RequestFlowTest, AMigratingStreamThatFindsNoRoomWaitsToo) {
  auto flow = Start();
  Serve(3);
  client_.next_reserve = absl::ResourceExhaustedError("no pages");
  client_.decodes.back().events->OnEnd(absl::UnavailableError("killed"), {});
  world_.RunFor(absl::Seconds(5));
  EXPECT_FALSE(events_.done) << events_.status;
  client_.next_reserve = absl::OkStatus();
  world_.RunFor(absl::Seconds(1));
  Serve(8);
  EXPECT_TRUE(events_.status.ok()) << events_.status;
  EXPECT_EQ(events_.tokens, AllTokens());
  EXPECT_EQ(events_.summary.migrations, 1u);
}

TEST_F(RequestFlowTest, ASecondFailureInARowIsTriedOnAnotherWorker) {
  auto flow = Start();
  for (int failures = 0; failures < 2; ++failures) {
    client_.decodes.back().events->OnEnd(absl::AbortedError("lease"), {});
    client_.prefills.back().events->OnEnd(absl::AbortedError("the taker gave up"), {}, 0);
    world_.RunFor(absl::Seconds(1));
  }
  ASSERT_EQ(client_.decodes.size(), 3u);
  EXPECT_NE(client_.decodes[2].worker, client_.decodes[1].worker);
}

TEST_F(RequestFlowTest, WaitingForRoomEndsAfterTheQueueWait) {
  client_.next_admit = absl::ResourceExhaustedError("no credit");
  auto flow = Start();
  world_.RunFor(absl::Seconds(40));
  EXPECT_TRUE(events_.done);
  EXPECT_EQ(events_.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kWait);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, AttemptsAndMigrationsAreLimited) {
  auto flow = Start();
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_GT(client_.prefills.size(), i);
    client_.prefills[i].events->OnEnd(absl::UnavailableError("gone"), {}, 0);
    world_.RunFor(absl::Seconds(2));
  }
  EXPECT_TRUE(events_.done);
  EXPECT_EQ(events_.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(events_.summary.attempts, 3u);
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kAttempts);
  EXPECT_EQ(events_.summary.workers_tried, 4u);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, AStreamThatBreaksTooOftenIsGivenUp) {
  auto flow = Start();
  for (uint32_t tokens = 1; !events_.done; ++tokens) {
    Serve(tokens);
    client_.decodes.back().events->OnEnd(absl::UnavailableError("killed"), {});
    world_.RunFor(absl::Seconds(2));
  }
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kMigrations);
  EXPECT_EQ(events_.summary.migrations, 3u);
  EXPECT_EQ(events_.status.message(), "killed");
}

TEST_F(RequestFlowTest, WithoutRetryBudgetTheFirstFailureIsTheLast) {
  while (budget_.Take()) {
  }
  auto flow = Start();
  client_.prefills[0].events->OnEnd(absl::InternalError("broken"), {}, 0);
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kBudget);
}

TEST_F(RequestFlowTest, WhoLosesItsWorkerNeedsNoRetryBudget) {
  while (budget_.Take()) {
  }
  auto flow = Start();
  flow->OnWorkerLost(client_.prefills[0].worker);
  EXPECT_FALSE(events_.done);
  EXPECT_FALSE(budget_.Take());
  world_.RunFor(absl::Seconds(1));
  Serve(8);
  EXPECT_TRUE(events_.done && events_.status.ok()) << events_.status;
  EXPECT_EQ(events_.summary.attempts, 2u);
}

TEST(RetryBudget, RequestsAndTimeRefillItUpToItsReserve) {
  struct Case {
    const char* what;
    uint32_t requests;
    absl::Duration passed;
    uint32_t retries;
  };
  const Case cases[] = {
      {"nothing", 0, absl::ZeroDuration(), 0},
      {"less than a retry's worth of requests", 3, absl::ZeroDuration(), 0},
      {"a share of requests", 20, absl::ZeroDuration(), 5},
      {"less than a retry's worth of time", 0, absl::Milliseconds(249), 0},
      {"a retry's worth of time", 0, absl::Milliseconds(250), 1},
      {"a rate over time", 0, absl::Milliseconds(1500), 6},
      {"both", 2, absl::Milliseconds(375), 2},
      {"no more than the reserve by time", 0, absl::Hours(1), 8},
      {"no more than the reserve by requests", 1000, absl::Hours(1), 8},
  };
  RetryOptions options;
  options.budget_ratio = 0.25;
  options.budget_per_s = 4;
  options.budget_burst = 8;
  for (const Case& c : cases) {
    testing::SimWorld world;
    RetryBudget budget(options, world.clock());
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(budget.Take()) << c.what;
    ASSERT_FALSE(budget.Take()) << c.what;
    world.RunFor(c.passed);
    for (uint32_t i = 0; i < c.requests; ++i) budget.OnRequest();
    uint32_t retries = 0;
    while (budget.Take()) ++retries;
    EXPECT_EQ(retries, c.retries) << c.what;
  }
}

TEST_F(RequestFlowTest, TheRequestsOwnFaultIsNotRetried) {
  auto flow = Start();
  client_.prefills[0].events->OnEnd(absl::InvalidArgumentError("bad"), {}, 0);
  EXPECT_EQ(events_.status.message(), "bad");
  EXPECT_EQ(events_.summary.gave_up, GaveUp::kNo);
  EXPECT_EQ(client_.prefills.size(), 1u);
}

TEST_F(RequestFlowTest, NoWorkersMeansWaitingForThemALittle) {
  ShowWorkers({});
  auto flow = Start();
  world_.RunFor(absl::Milliseconds(400));
  EXPECT_FALSE(events_.done);
  ShowWorkers({"b0"});
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.decodes.size(), 1u);  // one worker of both roles: local
  EXPECT_FALSE(client_.decodes[0].call.lease.has_value());
  EXPECT_EQ(client_.decodes[0].call.prompt.size(), 5u);
  client_.decodes[0].events->OnStarted(3, 0, "local");
  client_.decodes[0].events->OnToken(0, Token(100), FinishReason::kStop);
  EXPECT_TRUE(events_.status.ok());
  EXPECT_EQ(events_.summary.usage.cached_tokens, 3u);
}

TEST_F(RequestFlowTest, ALostWorkerBeforeTheFirstTokenIsARetry) {
  auto flow = Start();
  flow->OnWorkerLost(client_.prefills[0].worker);
  world_.RunFor(absl::Seconds(1));
  Serve(8);
  ASSERT_TRUE(events_.done && events_.status.ok()) << events_.status;
  ASSERT_EQ(events_.summary.moves.size(), 1u);
  EXPECT_EQ(MoveCauseName(events_.summary.moves[0].cause), "worker_lost");
  EXPECT_FALSE(events_.summary.moves[0].migration);
  EXPECT_FALSE(events_.summary.moves[0].gap.has_value());
  EXPECT_FALSE(events_.summary.exposed.has_value());
}

}  // namespace
}  // namespace sluice::cluster
