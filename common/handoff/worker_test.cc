// Two whole workers with the toy model, whose text depends on every byte of KV: split and local
// must say the same.
#include <gtest/gtest.h>

#include "handoff/worker_test_support.h"

namespace sluice::handoff {
namespace {

void ExpectNothingHeld(WorkerTest& test) {
  test.world.RunFor(absl::Seconds(60));
  EXPECT_EQ(test.p().PagesHeld(), 0u);
  EXPECT_EQ(test.d().PagesHeld(), 0u);
  EXPECT_EQ(test.p().worker->load().engine.running + test.p().worker->load().engine.waiting, 0u);
  EXPECT_EQ(test.d().worker->load().engine.running + test.d().worker->load().engine.waiting, 0u);
  EXPECT_EQ(test.d().worker->counters().quarantined_now, 0u);
  for (WorkerNode* node : {&test.p(), &test.d()}) {
    for (int i = 0; i < 8; ++i)
      EXPECT_TRUE(node->worker->Admit(1, TenantId("t")).ok()) << "a credit was lost";
  }
}

// The split stream: the first token from the prefill worker, the rest from the decode worker.
std::vector<request::TokenId> SplitTokens(const WorkerTest::Flight& flight) {
  std::vector<request::TokenId> tokens;
  if (flight.prefill->first.has_value()) tokens.push_back(flight.prefill->first->token);
  tokens.insert(tokens.end(), flight.decode->tokens.begin(), flight.decode->tokens.end());
  return tokens;
}

class SplitEqualsLocal : public ::testing::TestWithParam<uint32_t> {};

TEST_P(SplitEqualsLocal, ForEveryPromptLengthAndSampling) {
  for (uint64_t seed : {2u, 3u}) {
    WorkerTest solo;
    const Request request = MakeRequest(seed, GetParam(), 20);
    const std::shared_ptr<DecodeRecord> local = solo.Local(solo.d(), request);
    ASSERT_TRUE(local->status.ok());
    ASSERT_EQ(local->tokens.size(), 20u);

    WorkerTest test;
    const WorkerTest::Flight flight = test.Split(request);
    ASSERT_TRUE(test.RunToEnd(flight));
    EXPECT_TRUE(flight.prefill->status.ok()) << flight.prefill->status;
    EXPECT_TRUE(flight.decode->status.ok()) << flight.decode->status;
    EXPECT_EQ(SplitTokens(flight), local->tokens);
    EXPECT_EQ(flight.prefill->first->logits_hash, local->hashes[0]);
    EXPECT_EQ(flight.decode->hashes,
              std::vector<uint64_t>(local->hashes.begin() + 1, local->hashes.end()));
    EXPECT_EQ(flight.decode->positions.front(), 1u);
    EXPECT_EQ(flight.decode->finish, request::FinishReason::kLength);
    EXPECT_EQ(flight.decode->stats.recomputed_tokens, 0u);
    EXPECT_EQ(flight.decode->transport, "loopback");
    EXPECT_GT(flight.decode->bytes, 0u);
    EXPECT_EQ(flight.decode->bytes, flight.prefill->bytes);
    EXPECT_TRUE(flight.decode->transfer.has_value());
    EXPECT_FALSE(local->transfer.has_value());
    EXPECT_EQ(test.p().worker->counters().bytes_sent, test.d().worker->counters().bytes_received);
    EXPECT_EQ(
        test.p().worker->counters().stale_messages + test.d().worker->counters().stale_messages,
        0u);
    ExpectNothingHeld(test);
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, SplitEqualsLocal,
                         ::testing::Values(1u, 31u, 32u, 33u, 64u, 200u));

TEST(Worker, ASecondTurnMovesOnlyWhatIsNew) {
  WorkerTest test;
  Request first = MakeRequest(2, 100, 30);
  WorkerTest::Flight flight = test.Split(first);
  ASSERT_TRUE(test.RunToEnd(flight));
  Request second = first;
  const std::vector<request::TokenId> said = SplitTokens(flight);
  second.prompt.insert(second.prompt.end(), said.begin(), said.end());
  second.prompt.push_back(7);
  WorkerTest solo;
  const std::shared_ptr<DecodeRecord> local = solo.Local(solo.d(), second);

  flight = test.Split(second);
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_EQ(SplitTokens(flight), local->tokens);
  EXPECT_EQ(flight.decode->held_tokens, 128u)
      << "prompt and answer were published by the decode worker";
  EXPECT_EQ(flight.prefill->cached_tokens, 96u);
  EXPECT_EQ(flight.prefill->stats.computed_tokens, second.prompt.size() - 96);
  ExpectNothingHeld(test);
}

TEST(Worker, APromptThatIsHeldWholeMovesNoPieces) {
  WorkerTest test;
  const Request request = MakeRequest(2, 64, 40);
  WorkerTest::Flight flight = test.Split(request);
  ASSERT_TRUE(test.RunToEnd(flight));
  const std::vector<request::TokenId> tokens = SplitTokens(flight);
  flight = test.Split(request);
  EXPECT_EQ(flight.grant.held().blocks(), 2u);
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_EQ(SplitTokens(flight), tokens);
  EXPECT_EQ(flight.decode->bytes, 0u);
  EXPECT_EQ(flight.decode->held_tokens, 64u);
  ExpectNothingHeld(test);
}

TEST(Worker, AStreamThatEndsWithItsFirstTokenMovesNothing) {
  WorkerTest test;
  const WorkerTest::Flight flight = test.Split(MakeRequest(2, 100, 1));
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_TRUE(flight.prefill->status.ok()) << flight.prefill->status;
  EXPECT_EQ(flight.prefill->finish, request::FinishReason::kLength);
  EXPECT_EQ(flight.prefill->bytes, 0u);
  EXPECT_TRUE(flight.decode->tokens.empty());
  EXPECT_FALSE(flight.decode->status.ok());
  ExpectNothingHeld(test);
}

TEST(Worker, EmittedTokensAreFedAndNeverSampledAgain) {
  WorkerTest solo;
  Request request = MakeRequest(3, 70, 24);
  const std::shared_ptr<DecodeRecord> local = solo.Local(solo.d(), request);

  WorkerTest test;
  request.context.attempt = 2;
  request.emitted.assign(local->tokens.begin(), local->tokens.begin() + 10);
  const WorkerTest::Flight flight = test.Split(request);
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_FALSE(flight.prefill->first.has_value());
  EXPECT_TRUE(flight.decode->status.ok()) << flight.decode->status;
  EXPECT_EQ(flight.decode->positions.front(), 10u);
  EXPECT_EQ(flight.decode->tokens,
            std::vector<request::TokenId>(local->tokens.begin() + 10, local->tokens.end()));
  EXPECT_EQ(flight.decode->hashes,
            std::vector<uint64_t>(local->hashes.begin() + 10, local->hashes.end()));
  ExpectNothingHeld(test);
}

TEST(Worker, ManyAtOnceEqualTheirSoloRuns) {
  WorkerTest test;
  std::vector<WorkerTest::Flight> flights;
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 8; ++i)
    requests.push_back(MakeRequest(10 + i, 1 + 13 * static_cast<uint32_t>(i), 12));
  for (const Request& request : requests) flights.push_back(test.Split(request));
  for (size_t i = 0; i < flights.size(); ++i) {
    ASSERT_TRUE(test.RunToEnd(flights[i]));
    WorkerTest solo;
    EXPECT_EQ(SplitTokens(flights[i]), solo.Local(solo.d(), requests[i])->tokens)
        << "request " << i;
  }
  ExpectNothingHeld(test);
}

TEST(Worker, BlocksOfOtherNumericsAreNeverPublishedAsOwn) {
  NodeOptions other = TestNodeOptions();
  other.model.salt = 5;
  WorkerTest test(other);
  const Request request = MakeRequest(2, 100, 30);
  WorkerTest::Flight flight = test.Split(request);
  ASSERT_TRUE(test.RunToEnd(flight));
  ASSERT_TRUE(flight.decode->status.ok()) << flight.decode->status;
  EXPECT_EQ(test.d().index->stats().blocks, 0u);
}

TEST(Worker, AnotherLayoutIsRefusedWithBothDescriptions) {
  kv::LayoutSpec other_centre = TestNodeOptions().model.layout;
  other_centre.centre_digest = std::string(16, 'c');
  for (const kv::LayoutSpec& layout :
       {engine::ToyLayoutSpec(kernels::KvFormat::kF32), other_centre}) {
    NodeOptions other = TestNodeOptions();
    other.model.layout = layout;
    WorkerTest test(other);
    const absl::StatusOr<v1::Grant> grant =
        test.Reserve(ReserveFor(MakeRequest(2, 10, 5), test.p()));
    ASSERT_TRUE(absl::IsFailedPrecondition(grant.status())) << grant.status();
    for (WorkerNode* node : {&test.p(), &test.d()}) {
      EXPECT_NE(grant.status().message().find(node->pool->layout().Describe()),
                absl::string_view::npos);
    }
  }
}

TEST(Worker, ATenantWithoutACreditGetsOneWhoeverHasTheOthers) {
  NodeOptions options = TestNodeOptions();
  options.worker.credits_max = 2;
  WorkerTest test(options);
  Worker& worker = *test.p().worker;
  const auto refused = [&](const char* tenant) {
    return absl::IsResourceExhausted(worker.Admit(10, TenantId(tenant)).status());
  };
  EXPECT_FALSE(refused("flood"));
  EXPECT_FALSE(refused("flood"));
  EXPECT_TRUE(refused("flood"));
  EXPECT_FALSE(refused("quiet"));
  EXPECT_TRUE(refused("quiet"));
  EXPECT_FALSE(refused("third"));
  EXPECT_TRUE(refused("fourth")) << "twice as many in all";
}

TEST(Worker, CreditsAreCountedExpireAndComeBack) {
  NodeOptions options = TestNodeOptions();
  options.worker.credits_max = 2;
  WorkerTest test(options);
  Worker& worker = *test.p().worker;
  const absl::StatusOr<LeaseId> first = worker.Admit(10, TenantId("t"));
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(worker.Admit(10, TenantId("t")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(worker.Admit(10, TenantId("t")).status()));
  worker.ReturnCredit(*first);
  worker.ReturnCredit(*first);
  ASSERT_TRUE(worker.Admit(10, TenantId("t")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(worker.Admit(10, TenantId("t")).status()));
  test.world.RunFor(options.worker.credit_lease);
  EXPECT_TRUE(absl::IsResourceExhausted(worker.Admit(32 * 65, TenantId("t")).status()))
      << "the prompt does not fit the pool";
  ASSERT_TRUE(worker.Admit(32 * 40, TenantId("t")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(worker.Admit(32 * 40, TenantId("t")).status()))
      << "pages are promised once";
  // A call that comes without a credit gets one if there is one, and an error if not.
  ASSERT_TRUE(worker.Admit(10, TenantId("t")).ok());
  auto refused = std::make_shared<PrefillRecord>();
  worker.Prefill(PrefillFor(MakeRequest(2, 10, 5), LeaseId(), v1::Grant()),
                 std::make_unique<PrefillRecorder>(refused));
  test.world.RunFor(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsResourceExhausted(refused->status));
  test.world.RunFor(options.worker.credit_lease);
  auto alone = std::make_shared<PrefillRecord>();
  worker.Prefill(PrefillFor(MakeRequest(2, 10, 5), LeaseId(), v1::Grant()),
                 std::make_unique<PrefillRecorder>(alone));
  test.world.RunFor(absl::Seconds(1));
  EXPECT_TRUE(alone->status.ok()) << alone->status;
  EXPECT_TRUE(alone->first.has_value());
  ASSERT_TRUE(worker.Admit(10, TenantId("t")).ok());
  ASSERT_TRUE(worker.Admit(10, TenantId("t")).ok());
}

TEST(Worker, BadCallsEndWithTheirReason) {
  WorkerTest test;
  auto unknown = std::make_shared<DecodeRecord>();
  v1::Grant grant;
  grant.set_lease_id(std::string(16, 'x'));
  test.d().worker->Decode(DecodeFor(MakeRequest(2, 10, 5), grant),
                          std::make_unique<DecodeRecorder>(unknown));
  auto served = std::make_shared<PrefillRecord>();
  test.p().worker->Prefill(PrefillFor(MakeRequest(2, 10, 5), LeaseId(), grant),
                           std::make_unique<PrefillRecorder>(served));
  auto vocabulary = std::make_shared<DecodeRecord>();
  Request bad = MakeRequest(2, 10, 5);
  bad.prompt[0] = 100000;
  test.d().worker->Decode(LocalFor(bad), std::make_unique<DecodeRecorder>(vocabulary));
  // Another attempt's call must not take the pages of this one.
  const Request request = MakeRequest(4, 10, 5);
  WorkerTest::Flight flight;
  flight.grant = *test.Reserve(ReserveFor(request, test.p()));
  test.p().worker->Prefill(PrefillFor(request, LeaseId(), flight.grant),
                           std::make_unique<PrefillRecorder>(flight.prefill));
  Request other = request;
  other.context.attempt = 9;
  test.d().worker->Decode(DecodeFor(other, flight.grant),
                          std::make_unique<DecodeRecorder>(flight.decode));
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_TRUE(absl::IsFailedPrecondition(flight.decode->status)) << flight.decode->status;
  EXPECT_TRUE(absl::IsNotFound(unknown->status)) << unknown->status;
  EXPECT_TRUE(absl::IsFailedPrecondition(served->status)) << served->status;
  EXPECT_TRUE(absl::IsInvalidArgument(vocabulary->status)) << vocabulary->status;
  ExpectNothingHeld(test);
}

TEST(Worker, OneLeaseIsServedForOneCall) {
  WorkerTest test;
  const Request request = MakeRequest(2, 150, 12);
  WorkerTest::Flight flight = test.Split(request);
  auto second = std::make_shared<PrefillRecord>();
  Request other = MakeRequest(5, 150, 12);
  test.p().worker->Prefill(PrefillFor(other, LeaseId(), flight.grant),
                           std::make_unique<PrefillRecorder>(second));
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_TRUE(flight.decode->status.ok()) << flight.decode->status;
  WorkerTest solo;
  EXPECT_EQ(SplitTokens(flight), solo.Local(solo.d(), request)->tokens);
  EXPECT_TRUE(absl::IsAlreadyExists(second->status)) << second->status;
  ExpectNothingHeld(test);
}

// Moments of a request's life, by virtual time: a token costs 1 ms to compute, a message 5 ms to
// travel.
WorkerTest SlowWorkers() {
  NodeOptions options = TestNodeOptions();
  options.token_cost = absl::Milliseconds(1);
  transport::LinkPlan link;
  link.delay_min = link.delay_max = absl::Milliseconds(5);
  return WorkerTest(options, options, link);
}

class CancelAt : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(CancelAt, GivesEverythingBack) {
  const auto [who, when_ms] = GetParam();
  WorkerTest test = SlowWorkers();
  const Request request = MakeRequest(2, 150, 60);
  const WorkerTest::Flight flight = test.Split(request);
  const Request bystander_request = MakeRequest(3, 40, 60);
  const WorkerTest::Flight bystander = test.Split(bystander_request);
  test.world.RunFor(absl::Milliseconds(when_ms));
  if (who != 1) test.p().worker->Cancel(flight.prefill_call);
  if (who != 0) test.d().worker->Cancel(flight.decode_call);
  ASSERT_TRUE(test.RunToEnd(flight));
  for (const absl::Status* status : {&flight.prefill->status, &flight.decode->status}) {
    EXPECT_TRUE(status->ok() || absl::IsCancelled(*status) || absl::IsAborted(*status)) << *status;
  }
  ASSERT_TRUE(test.RunToEnd(bystander));
  WorkerTest solo;
  EXPECT_EQ(SplitTokens(bystander), solo.Local(solo.d(), bystander_request)->tokens);
  ExpectNothingHeld(test);
}

INSTANTIATE_TEST_SUITE_P(Moments, CancelAt,
                         ::testing::Combine(::testing::Values(0, 1, 2),
                                            ::testing::Values(0, 3, 41, 90, 130, 152, 160, 165, 170,
                                                              178, 185, 200, 260)));

class DeadlineAt : public ::testing::TestWithParam<int> {};

TEST_P(DeadlineAt, EndsBothCalls) {
  WorkerTest test = SlowWorkers();
  Request request = MakeRequest(2, 150, 60);
  request.context.deadline = test.world.Now() + absl::Milliseconds(GetParam());
  const WorkerTest::Flight flight = test.Split(request);
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_TRUE(absl::IsDeadlineExceeded(flight.decode->status) ||
              absl::IsAborted(flight.decode->status))
      << flight.decode->status;
  EXPECT_LE(flight.decode->tokens.size(), static_cast<size_t>(GetParam()));
  ExpectNothingHeld(test);
}

INSTANTIATE_TEST_SUITE_P(Moments, DeadlineAt,
                         ::testing::Values(1, 60, 130, 155, 161, 166, 171, 178, 185));

class CrashAt : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(CrashAt, TheSurvivorEndsItsCall) {
  const auto [site, when_ms] = GetParam();
  WorkerTest test = SlowWorkers();
  const WorkerTest::Flight flight = test.Split(MakeRequest(2, 150, 60));
  test.world.RunFor(absl::Milliseconds(when_ms));
  test.Crash(site);
  EXPECT_TRUE(test.RunToEnd(flight));
  if (site == 0) {
    if (!flight.decode->status.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(flight.decode->status) ||
                  absl::IsAborted(flight.decode->status))
          << flight.decode->status;
      EXPECT_TRUE(flight.decode->tokens.empty());
    }
    test.world.RunFor(absl::Seconds(60));
    EXPECT_EQ(test.d().PagesHeld(), 0u);
  } else {
    test.world.RunFor(absl::Seconds(60));
    EXPECT_EQ(test.p().PagesHeld(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, CrashAt,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Values(0, 3, 41, 90, 150, 160, 165, 170, 178,
                                                              190, 230)));

TEST(Worker, DestructionEndsCallsThatAreRunningOrInTheMail) {
  WorkerTest test = SlowWorkers();
  const WorkerTest::Flight running = test.Split(MakeRequest(2, 150, 60));
  test.world.RunFor(absl::Milliseconds(50));
  auto mailed_prefill = std::make_shared<PrefillRecord>();
  auto mailed_decode = std::make_shared<DecodeRecord>();
  std::optional<absl::StatusOr<v1::Grant>> grant;
  test.p().worker->Prefill(PrefillFor(MakeRequest(3, 10, 5), LeaseId(), v1::Grant()),
                           std::make_unique<PrefillRecorder>(mailed_prefill));
  test.d().worker->Decode(LocalFor(MakeRequest(3, 10, 5)),
                          std::make_unique<DecodeRecorder>(mailed_decode));
  test.d().worker->Reserve(ReserveFor(MakeRequest(3, 10, 5), test.p()),
                           [&](absl::StatusOr<v1::Grant> made) { grant = std::move(made); });
  test.Crash(0);
  test.Crash(1);
  EXPECT_TRUE(absl::IsUnavailable(running.prefill->status));
  EXPECT_TRUE(absl::IsUnavailable(running.decode->status));
  EXPECT_TRUE(absl::IsUnavailable(mailed_prefill->status));
  EXPECT_TRUE(absl::IsUnavailable(mailed_decode->status));
  ASSERT_TRUE(grant.has_value());
  EXPECT_TRUE(absl::IsUnavailable(grant->status()));
  EXPECT_EQ(test.p().PagesHeld(), 0u);
  EXPECT_EQ(test.d().PagesHeld(), 0u);
}

TEST(Worker, ReleaseEndsAWaitingDecode) {
  WorkerTest test = SlowWorkers();
  const WorkerTest::Flight flight = test.Split(MakeRequest(2, 150, 60));
  test.world.RunFor(absl::Milliseconds(50));
  LeaseId lease;
  ASSERT_TRUE(ParseLease(flight.grant.lease_id(), &lease));
  test.d().worker->Release(lease);
  test.d().worker->Release(lease);
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_TRUE(absl::IsCancelled(flight.decode->status)) << flight.decode->status;
  EXPECT_TRUE(absl::IsAborted(flight.prefill->status)) << flight.prefill->status;
  EXPECT_FALSE(flight.prefill->first.has_value()) << "computing stopped";
  ExpectNothingHeld(test);
}

#ifdef SLUICE_FAULTS_ENABLED
class WorkerFaults : public ::testing::TestWithParam<std::string> {};

TEST_P(WorkerFaults, FailOneCallAndNothingElse) {
  WorkerTest test;
  for (WorkerNode* node : {&test.p(), &test.d()}) {
    node->faults.Arm(GetParam(), [hit = false]() mutable {
      return std::exchange(hit, true) ? absl::OkStatus() : absl::InternalError("fault");
    });
  }
  const WorkerTest::Flight flight = test.Split(MakeRequest(2, 100, 10));
  ASSERT_TRUE(test.RunToEnd(flight));
  EXPECT_FALSE(flight.prefill->status.ok() && flight.decode->status.ok());
  EXPECT_GT(test.p().faults.HitCount(GetParam()) + test.d().faults.HitCount(GetParam()), 0u);
  const Request next = MakeRequest(4, 100, 10);
  const WorkerTest::Flight second = test.Split(next);
  ASSERT_TRUE(test.RunToEnd(second));
  WorkerTest solo;
  EXPECT_EQ(SplitTokens(second), solo.Local(solo.d(), next)->tokens);
  ExpectNothingHeld(test);
}

INSTANTIATE_TEST_SUITE_P(All, WorkerFaults,
                         ::testing::Values("worker.prefill_started", "worker.first_token",
                                           "worker.decode_started", "worker.token"));
#endif

TEST(Worker, ProgressIsNowWhenIdleAndTheLastStepWhenNot) {
  WorkerTest test = SlowWorkers();
  test.world.RunFor(absl::Seconds(5));
  EXPECT_EQ(test.p().worker->last_progress(), test.world.Now());
  const WorkerTest::Flight flight = test.Split(MakeRequest(2, 150, 60));
  test.world.RunFor(absl::Milliseconds(20));
  test.engine_loop(0).Pause();
  const absl::Time stuck = test.p().worker->last_progress();
  test.world.RunFor(absl::Seconds(2));
  EXPECT_EQ(test.p().worker->last_progress(), stuck);
  test.engine_loop(0).Resume();
  ASSERT_TRUE(test.RunToEnd(flight));
  ExpectNothingHeld(test);
}

}  // namespace
}  // namespace sluice::handoff
