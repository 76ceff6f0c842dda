// Undisturbed streams, the order in which two workers are heard, and the client that ends early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/request_flow_test_support.h"

namespace sluice::cluster {
namespace {

TEST_F(RequestFlowTest, TokensOfBothWorkersFormOneStream) {
  auto flow = Start();
  ASSERT_EQ(client_.prefills.size(), 1u);
  EXPECT_EQ(client_.reserves[0].second.holder, Incarnation(1));
  EXPECT_EQ(client_.prefills[0].call.grant.lease_id(),
            client_.decodes[0].call.lease->value().ToBytes());
  Serve(8);
  EXPECT_TRUE(events_.done);
  EXPECT_TRUE(events_.status.ok());
  EXPECT_EQ(events_.tokens, AllTokens());
  EXPECT_EQ(events_.summary.usage.completion_tokens, 8u);
  EXPECT_EQ(events_.placed, 1);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, DecodeTokensThatOvertakeTheFirstOneWait) {
  auto flow = Start();
  client_.decodes[0].events->OnStarted(0, 0, "test");
  client_.decodes[0].events->OnToken(1, Token(101), FinishReason::kNone);
  EXPECT_TRUE(events_.tokens.empty());
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  EXPECT_EQ(events_.tokens, (std::vector<request::TokenId>{100, 101}));
}

TEST_F(RequestFlowTest, AWholeStreamMayOvertakeItsFirstToken) {
  max_tokens_ = 1000;
  auto flow = Start();
  client_.decodes[0].events->OnStarted(0, 0, "test");
  for (uint32_t p = 1; p < 1000; ++p) {
    client_.decodes[0].events->OnToken(p, Token(7),
                                       p == 999 ? FinishReason::kLength : FinishReason::kNone);
  }
  client_.decodes[0].events->OnEnd(absl::OkStatus(), {});
  EXPECT_TRUE(events_.tokens.empty());
  EXPECT_FALSE(events_.done);
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  EXPECT_TRUE(events_.done && events_.status.ok()) << events_.status;
  EXPECT_EQ(events_.tokens.size(), 1000u);
  EXPECT_EQ(events_.summary.attempts, 1u);
}

TEST_F(RequestFlowTest, ADecodeWorkerThatSendsMoreThanWasAskedForIsAtFault) {
  auto flow = Start();
  const WorkerId worker = client_.decodes[0].worker;
  client_.decodes[0].events->OnStarted(0, 0, "test");
  for (uint32_t p = 1; p <= 8; ++p)
    client_.decodes[0].events->OnToken(p, Token(7), FinishReason::kNone);
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.decodes.size(), 2u);
  EXPECT_NE(client_.decodes[1].worker, worker);
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
}

TEST_F(RequestFlowTest, WhatAStreamWaitsForItsPagesMeasuresTheLink) {
  auto flow = Start();
  auto& decode = client_.decodes[0];
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  world_.RunFor(absl::Seconds(2));
  decode.events->OnStarted(0, 10'000'000, "test");
  const std::vector<MoveRate> rates = directory_.MoveRates();
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_EQ(rates[0].pair, WorkerPair(client_.prefills[0].worker, decode.worker));
  EXPECT_DOUBLE_EQ(rates[0].bytes_per_s, 5e6);
}

TEST_F(RequestFlowTest, AStreamThatEndsWithItsFirstTokenCancelsTheRest) {
  auto flow = Start();
  client_.prefills[0].events->OnFirstToken(Token(2), FinishReason::kStop);
  EXPECT_TRUE(events_.status.ok() && events_.done);
  EXPECT_TRUE(client_.running.empty());
  EXPECT_TRUE(client_.leases.empty());
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, ADecodeWorkerThatHearsOfTheEndFirstIsNoFailure) {
  auto flow = Start();
  client_.decodes[0].events->OnEnd(
      absl::AbortedError("the holder withdrew: the stream ended with its first token"), {});
  EXPECT_FALSE(events_.done);
  client_.prefills[0].events->OnFirstToken(Token(2), FinishReason::kStop);
  EXPECT_TRUE(events_.done && events_.status.ok());
  EXPECT_EQ(events_.summary.attempts, 1u);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, CancelAndDeadlineEndEverything) {
  auto flow = Start();
  Serve(2);
  flow->Finish(absl::CancelledError("client left"));
  EXPECT_TRUE(absl::IsCancelled(events_.status));
  EXPECT_TRUE(client_.running.size() <= 1u);  // the prefill call had ended by itself
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, DoneComesBeforeFinishReturnsAlsoFromWithinAToken) {
  auto flow = Start();
  events_.on_token = [&] {
    if (events_.tokens.size() < 3) return;
    flow->Finish(absl::OkStatus());
    EXPECT_TRUE(events_.done);
  };
  Serve(8);  // five more tokens that were under way
  EXPECT_TRUE(events_.done && events_.status.ok());
  EXPECT_EQ(events_.tokens.size(), 3u);
  flow->Finish(absl::CancelledError("again"));
  EXPECT_TRUE(events_.status.ok());
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, FinishFromWithinAFirstTokenDropsThoseThatOvertookIt) {
  auto flow = Start();
  client_.decodes[0].events->OnStarted(0, 0, "test");
  client_.decodes[0].events->OnToken(1, Token(101), FinishReason::kNone);
  events_.on_token = [&] { flow->Finish(absl::CancelledError("the client left")); };
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  EXPECT_TRUE(absl::IsCancelled(events_.status));
  EXPECT_EQ(events_.tokens.size(), 1u);
  EXPECT_TRUE(client_.running.empty());
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, StartTellsNothingAndTheLossOfTheLastWorkerMayEndTheFlowAtOnce) {
  retry_.attempts_max = 1;
  FlowEnvironment once{loop_,  client_, directory_, random_, budget_, retry_, std::move(env_.place),
                       poison_};
  FlowSpec spec;
  spec.prompt = {1, 2, 3};
  auto flow = RequestFlow::Create(once, std::move(spec), events_);
  flow->Start();
  EXPECT_FALSE(events_.placed > 0 || events_.done);
  world_.RunFor(absl::ZeroDuration());
  ASSERT_EQ(client_.decodes.size(), 1u);
  flow->OnWorkerLost(client_.decodes[0].worker);
  EXPECT_TRUE(events_.done);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, TheDeadlineEndsAStream) {
  auto flow = Start(absl::Seconds(3));
  Serve(2);
  world_.RunFor(absl::Seconds(4));
  EXPECT_TRUE(absl::IsDeadlineExceeded(events_.status));
  EXPECT_THAT(std::string(events_.status.message()),
              ::testing::HasSubstr("STREAMING after 2 tokens"));
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, MeasuresWhatTheClientWaitsFor) {
  LoadReport load;
  load.decode_step_ms = 15;
  for (const char* worker : {"d0", "d1"})
    directory_.ReportLoad(WorkerId(worker), Incarnation(1), load);
  client_.hold_admits = true;
  auto flow = Start();
  world_.RunFor(absl::Milliseconds(30));
  for (auto& answer : std::exchange(client_.held_admits, {})) answer();
  client_.hold_admits = false;
  world_.RunFor(absl::ZeroDuration());
  ASSERT_EQ(client_.prefills.size(), 1u);
  world_.RunFor(absl::Milliseconds(50));
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  client_.decodes[0].events->OnStarted(0, 0, "test");
  world_.RunFor(absl::Milliseconds(40));
  client_.decodes[0].events->OnToken(1, Token(101), FinishReason::kNone);
  client_.decodes[0].events->OnEnd(absl::UnavailableError("the stream broke"), {});
  world_.RunFor(absl::Milliseconds(70));
  ASSERT_EQ(client_.decodes.size(), 2u);
  Serve(8);
  ASSERT_TRUE(events_.done && events_.status.ok()) << events_.status;
  const FlowSummary& summary = events_.summary;
  EXPECT_EQ(summary.until_first_token[1], absl::Milliseconds(30));
  EXPECT_EQ(summary.until_first_token[3], absl::Milliseconds(50));
  EXPECT_EQ(summary.until_first_token[0] + summary.until_first_token[2], absl::ZeroDuration());
  EXPECT_EQ(summary.exposed, absl::Milliseconds(25));
  ASSERT_EQ(summary.moves.size(), 1u);
  EXPECT_EQ(MoveCauseName(summary.moves[0].cause), "unavailable");
  EXPECT_TRUE(summary.moves[0].migration);
  EXPECT_EQ(summary.moves[0].gap, absl::Milliseconds(70));
}

// While workers refuse for lack of room the flow goes on asking; it says when that is over.
TEST_F(RequestFlowTest, SaysWhenItAsksForNoRoomAnyMore) {
  client_.next_admit = absl::ResourceExhaustedError("full");
  const auto flow = Start();
  world_.RunFor(absl::Seconds(1));
  EXPECT_GT(client_.admits.size(), 10u);
  EXPECT_EQ(events_.sought, 0);
  client_.next_admit = LeaseId();
  world_.RunFor(absl::Seconds(1));
  EXPECT_EQ(events_.sought, 1);
  EXPECT_EQ(flow->phase(), request::Phase::kPrefilling);
  flow->Finish(absl::CancelledError("left"));

  ShowWorkers({"b0"});  // computes its prompts itself: has room when it says that it has begun
  events_ = RecordingEvents();
  const auto local = Start();
  EXPECT_EQ(events_.sought, 0);
  client_.decodes.back().events->OnStarted(0, 0, "");
  EXPECT_EQ(events_.sought, 1);
  local->Finish(absl::CancelledError("left"));

  ShowWorkers({});
  events_ = RecordingEvents();
  const auto nobody = Start();
  EXPECT_GT(events_.sought, 0);
  nobody->Finish(absl::CancelledError("left"));
}

#ifdef SLUICE_FAULTS_ENABLED
// Every change that a flow makes is a fault point, and each is reached here. Reserved, transferring
// and verified are passed within one step, so nothing can end or retry a request in them.
TEST_F(RequestFlowTest, EveryChangeOfPhaseIsAFaultPoint) {
  using request::Phase;
  FaultInjector faults;
  env_.faults = &faults;
  const auto until = [&](Phase phase) {
    events_ = RecordingEvents();
    client_.hold_admits = phase == Phase::kPlaced;
    auto flow = Start();
    if (phase == Phase::kDecoding) client_.decodes.back().events->OnStarted(0, 0, "test");
    if (phase == Phase::kStreaming)
      client_.prefills.back().events->OnFirstToken(Token(100), FinishReason::kNone);
    EXPECT_EQ(flow->phase(), phase);
    return flow;
  };
  const absl::Status ends[] = {absl::OkStatus(), absl::CancelledError("left"),
                               absl::DeadlineExceededError("late")};
  const Phase waiting[] = {Phase::kPlaced, Phase::kPrefilling, Phase::kDecoding, Phase::kStreaming};
  for (const absl::Status& end : ends) {
    events_ = RecordingEvents();
    FlowSpec spec;
    spec.prompt = {1};
    RequestFlow::Create(env_, std::move(spec), events_)->Finish(end);
    for (Phase phase : waiting) until(phase)->Finish(end);
  }
  for (Phase phase : {Phase::kPrefilling, Phase::kDecoding, Phase::kStreaming}) {
    const auto flow = until(phase);
    client_.decodes.back().events->OnEnd(absl::AbortedError("gone"), {});
    client_.prefills.back().events->OnEnd(absl::AbortedError("gone"), {}, 0);
    world_.RunFor(absl::Seconds(2));
    flow->Finish(absl::CancelledError("left"));
  }
  const auto split = until(Phase::kDecoding);
  client_.prefills.back().events->OnFirstToken(Token(100), FinishReason::kNone);
  split->Finish(absl::CancelledError("left"));
  ShowWorkers({"b0"});  // computes its prompts itself
  events_ = RecordingEvents();
  const auto local = Start();
  client_.decodes.back().events->OnStarted(0, 0, "");
  local->Finish(absl::CancelledError("left"));

  const auto passed = [](Phase phase) {
    return phase == Phase::kReserved || phase == Phase::kTransferring || phase == Phase::kVerified;
  };
  for (const auto& [from, to] : request::kPhaseMachine.changes) {
    const std::string point = request::kPhaseMachine.PointOf(from, to);
    const bool leaves_early = to == Phase::kPlaced || IsTerminal(to) || to == Phase::kStreaming;
    if (passed(from) && leaves_early) continue;
    if (from == to) continue;  // placed again: no change
    EXPECT_GT(faults.HitCount(point), 0u) << point;
  }
}
#endif

}  // namespace
}  // namespace sluice::cluster
