// The flow against a scripted cluster: each test says what workers answer, and checks what the client sees and what is given back.
#include "cluster/request_flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "tests/support/sim_loop.h"

namespace sluice::cluster {
namespace {

using request::FinishReason;
using request::SampledToken;

// Records calls; tests answer them by hand.
class ScriptedClient final : public WorkerClient {
 public:
  struct Prefill {
    WorkerId worker;
    handoff::PrefillCall call;
    std::unique_ptr<handoff::PrefillEvents> events;
  };
  struct Decode {
    WorkerId worker;
    handoff::DecodeCall call;
    std::unique_ptr<handoff::DecodeEvents> events;
  };

  explicit ScriptedClient(Loop& loop) : loop_(loop) {}

  void Admit(const WorkerId& worker, const handoff::CallContext&, uint32_t,
             absl::AnyInvocable<void(absl::StatusOr<LeaseId>)> done) override {
    absl::StatusOr<LeaseId> credit = next_admit.ok() ? absl::StatusOr<LeaseId>(NewLease(credits)) : next_admit;
    admits.push_back(worker);
    auto answer = [done = std::move(done), credit = std::move(credit)]() mutable { done(std::move(credit)); };
    if (hold_admits) return held_admits.push_back(std::move(answer));
    loop_.Post(std::move(answer));
  }
  void ReturnCredit(const WorkerId&, LeaseId credit) override { credits.erase(credit.value()); }
  void Reserve(const WorkerId& worker, handoff::ReserveCall call,
               absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) override {
    absl::StatusOr<v1::Grant> grant = v1::Grant();
    if (!next_reserve.ok()) {
      grant = next_reserve;
    } else {
      grant->set_lease_id(NewLease(leases).value().ToBytes());
    }
    reserves.emplace_back(worker, std::move(call));
    loop_.Post([done = std::move(done), grant = std::move(grant)]() mutable { done(std::move(grant)); });
  }
  void Release(const WorkerId&, LeaseId lease) override { leases.erase(lease.value()); }
  handoff::CallId StartPrefill(const WorkerId& worker, handoff::PrefillCall call,
                               std::unique_ptr<handoff::PrefillEvents> events) override {
    credits.erase(call.credit.value());
    prefills.push_back({worker, std::move(call), std::move(events)});
    return Register();
  }
  handoff::CallId StartDecode(const WorkerId& worker, handoff::DecodeCall call,
                              std::unique_ptr<handoff::DecodeEvents> events) override {
    decodes.push_back({worker, std::move(call), std::move(events)});
    return Register();
  }
  void CancelCall(handoff::CallId call) override { running.erase(call); }

  absl::StatusOr<LeaseId> next_admit = LeaseId();
  bool hold_admits = false;
  std::vector<absl::AnyInvocable<void()>> held_admits;
  absl::Status next_reserve;
  std::vector<WorkerId> admits;
  std::vector<std::pair<WorkerId, handoff::ReserveCall>> reserves;
  std::vector<Prefill> prefills;
  std::vector<Decode> decodes;
  std::set<handoff::CallId> running;
  std::set<Id128> credits;
  std::set<Id128> leases;

 private:
  LeaseId NewLease(std::set<Id128>& held) {
    const Id128 id{7, ++last_};
    held.insert(id);
    return LeaseId(id);
  }
  handoff::CallId Register() {
    const handoff::CallId id(++last_);
    running.insert(id);
    return id;
  }
  Loop& loop_;
  uint64_t last_ = 0;
};

class RecordingEvents final : public FlowEvents {
 public:
  void OnPlaced(const PlacementDecision&, Id128, Id128) override { ++placed; }
  void OnToken(uint32_t position, const SampledToken& token, FinishReason) override {
    EXPECT_EQ(position, tokens.size());
    tokens.push_back(token.token);
  }
  void OnDone(const absl::Status& result, const FlowSummary& s) override {
    EXPECT_FALSE(done);
    done = true;
    status = result;
    summary = s;
  }
  int placed = 0;
  std::vector<request::TokenId> tokens;
  bool done = false;
  absl::Status status;
  FlowSummary summary;
};

class RequestFlowTest : public ::testing::Test {
 protected:
  RequestFlowTest() { ShowWorkers({"p0", "p1", "d0", "d1"}); }

  void ShowWorkers(const std::vector<std::string>& names) {
    std::vector<Directory::Update> view;
    for (const std::string& name : names) {
      Directory::Update update;
      update.description.id = WorkerId(name);
      update.description.incarnation = Incarnation(1);
      update.description.role = name[0] == 'p' ? Role::kPrefill : name[0] == 'd' ? Role::kDecode : Role::kBoth;
      update.description.page_tokens = 32;
      update.ready = true;
      view.push_back(update);
    }
    directory_.ApplyView(++version_, view, &lost_);
  }

  std::shared_ptr<RequestFlow> Start(absl::Duration deadline = absl::InfiniteDuration()) {
    FlowSpec spec;
    spec.context.request = RequestId("r");
    spec.context.deadline = world_.Now() + deadline;
    spec.prompt = {1, 2, 3, 4, 5};
    spec.sampling.max_tokens = max_tokens_;
    auto flow = RequestFlow::Create(env_, std::move(spec), events_);
    flow->Start();
    world_.RunFor(absl::ZeroDuration());
    return flow;
  }
  static SampledToken Token(request::TokenId id) {
    SampledToken token;
    token.token = id;
    return token;
  }
  // The last dispatch answers as a healthy pair would, up to `tokens` output tokens in all.
  void Serve(uint32_t tokens) {
    auto& prefill = client_.prefills.back();
    auto& decode = client_.decodes.back();
    uint32_t position = static_cast<uint32_t>(prefill.call.emitted.size());
    prefill.events->OnStarted(0);
    if (position == 0) prefill.events->OnFirstToken(Token(100), FinishReason::kNone), position = 1;
    decode.events->OnStarted(0, 0, "test");
    prefill.events->OnEnd(absl::OkStatus(), {}, 64);
    for (; position < tokens; ++position) {
      decode.events->OnToken(position, Token(100 + static_cast<int>(position)),
                             position == 7 ? FinishReason::kLength : FinishReason::kNone, 0);
    }
  }
  void ExpectNothingHeld() {
    EXPECT_TRUE(client_.credits.empty());
    EXPECT_TRUE(client_.leases.empty() || !client_.decodes.empty());
    for (const WorkerState& worker : directory_.Workers()) {
      EXPECT_EQ(worker.sent_requests, 0u) << worker.description.id;
      EXPECT_EQ(worker.sent_prefill_tokens + worker.sent_decode_tokens, 0u) << worker.description.id;
    }
  }
  static std::vector<request::TokenId> AllTokens() { return {100, 101, 102, 103, 104, 105, 106, 107}; }

  sluice::testing::SimWorld world_;
  Loop& loop_ = world_.AddLoop("router");
  ScriptedClient client_{loop_};
  Directory directory_{world_.clock(), BreakerOptions{}};
  uint64_t version_ = 0;
  uint32_t max_tokens_ = 8;
  std::vector<WorkerId> lost_;
  SeededRandom random_{3};
  RetryOptions retry_;
  RetryBudget budget_{retry_};
  PlacementOptions placement_;
  FlowEnvironment env_{loop_, client_, directory_, random_, budget_, retry_,
                       [this](const PlacementQuery& query, const FlowSpec&, auto done) {
                         auto decision = Place(placement_, query, directory_.Workers(), random_);
                         loop_.Post([done = std::move(done), decision = std::move(decision)]() mutable {
                           done(std::move(decision));
                         });
                       }};
  RecordingEvents events_;
};

TEST_F(RequestFlowTest, TokensOfBothWorkersFormOneStream) {
  auto flow = Start();
  ASSERT_EQ(client_.prefills.size(), 1u);
  EXPECT_EQ(client_.reserves[0].second.holder, Incarnation(1));
  EXPECT_EQ(client_.prefills[0].call.grant.lease_id(), client_.decodes[0].call.lease->value().ToBytes());
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
  client_.decodes[0].events->OnToken(1, Token(101), FinishReason::kNone, 0);
  EXPECT_TRUE(events_.tokens.empty());
  client_.prefills[0].events->OnFirstToken(Token(100), FinishReason::kNone);
  EXPECT_EQ(events_.tokens, (std::vector<request::TokenId>{100, 101}));
}

TEST_F(RequestFlowTest, AWholeStreamMayOvertakeItsFirstToken) {
  max_tokens_ = 1000;
  auto flow = Start();
  client_.decodes[0].events->OnStarted(0, 0, "test");
  for (uint32_t p = 1; p < 1000; ++p) {
    client_.decodes[0].events->OnToken(p, Token(7), p == 999 ? FinishReason::kLength : FinishReason::kNone, 0);
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
  for (uint32_t p = 1; p <= 8; ++p) client_.decodes[0].events->OnToken(p, Token(7), FinishReason::kNone, 0);
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.decodes.size(), 2u);
  EXPECT_NE(client_.decodes[1].worker, worker);
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
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
  client_.decodes[0].events->OnEnd(absl::AbortedError("the holder withdrew: the stream ended with its first token"), {});
  EXPECT_FALSE(events_.done);
  client_.prefills[0].events->OnFirstToken(Token(2), FinishReason::kStop);
  EXPECT_TRUE(events_.done && events_.status.ok());
  EXPECT_EQ(events_.summary.attempts, 1u);
  ExpectNothingHeld();
}

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
  client_.decodes[0].events->OnToken(1, Token(66), FinishReason::kNone, 0);  // late, of the first attempt
  Serve(8);
  EXPECT_EQ(events_.tokens, AllTokens());
  EXPECT_EQ(events_.summary.attempts, 2u);
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, EverythingThatADeadWorkerHeldIsRetried) {
  constexpr size_t kFlows = 100;
  std::vector<RecordingEvents> events(kFlows);
  std::vector<std::shared_ptr<RequestFlow>> flows;
  for (RecordingEvents& each : events) {
    FlowSpec spec;
    spec.context.deadline = absl::InfiniteFuture();
    spec.prompt = {1, 2, 3};
    spec.sampling.max_tokens = 8;
    flows.push_back(RequestFlow::Create(env_, std::move(spec), each));
    flows.back()->Start();
  }
  world_.RunFor(absl::ZeroDuration());
  ASSERT_EQ(client_.prefills.size(), kFlows);
  for (size_t i = 0; i < kFlows; ++i) client_.prefills[i].events->OnEnd(absl::UnavailableError("connection reset"), {}, 0);
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
                                       p == 7 ? FinishReason::kLength : FinishReason::kNone, 0);
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
  EXPECT_THAT(std::string(events_.status.message()), ::testing::HasSubstr("waited 30s"));
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
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, TheRequestsOwnFaultIsNotRetried) {
  auto flow = Start();
  client_.prefills[0].events->OnEnd(absl::InvalidArgumentError("bad"), {}, 0);
  EXPECT_EQ(events_.status.message(), "bad");
  EXPECT_EQ(client_.prefills.size(), 1u);
}

TEST_F(RequestFlowTest, CancelAndDeadlineEndEverything) {
  auto flow = Start();
  Serve(2);
  flow->Finish(absl::CancelledError("client left"));
  EXPECT_TRUE(absl::IsCancelled(events_.status));
  EXPECT_TRUE(client_.running.size() <= 1u);  // the prefill call had ended by itself
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, TheDeadlineEndsAStream) {
  auto flow = Start(absl::Seconds(3));
  Serve(2);
  world_.RunFor(absl::Seconds(4));
  EXPECT_TRUE(absl::IsDeadlineExceeded(events_.status));
  EXPECT_THAT(std::string(events_.status.message()), ::testing::HasSubstr("STREAMING after 2 tokens"));
  ExpectNothingHeld();
}

TEST_F(RequestFlowTest, NoWorkersMeansWaitingForThem) {
  ShowWorkers({});
  auto flow = Start();
  world_.RunFor(absl::Seconds(2));
  EXPECT_FALSE(events_.done);
  ShowWorkers({"b0"});
  world_.RunFor(absl::Seconds(1));
  ASSERT_EQ(client_.decodes.size(), 1u);  // one worker of both roles: local
  EXPECT_FALSE(client_.decodes[0].call.lease.has_value());
  EXPECT_EQ(client_.decodes[0].call.prompt.size(), 5u);
  client_.decodes[0].events->OnStarted(3, 0, "local");
  client_.decodes[0].events->OnToken(0, Token(100), FinishReason::kStop, 0);
  EXPECT_TRUE(events_.status.ok());
  EXPECT_EQ(events_.summary.usage.cached_tokens, 3u);
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
  client_.decodes[0].events->OnToken(1, Token(101), FinishReason::kNone, 0);
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
