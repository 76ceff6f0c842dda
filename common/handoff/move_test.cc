// Source and taker together on a simulated network: what a healthy move does, and what its leases
// allow.
#include <gtest/gtest.h>

#include "handoff/move_scenario.h"

namespace sluice::handoff {
namespace {

class MoveKinds : public ::testing::TestWithParam<std::tuple<bool, DigestMode, uint32_t>> {};

TEST_P(MoveKinds, BytesArriveAsTheyWereAndCountersAgree) {
  MoveOptions options;
  options.true_get = std::get<0>(GetParam());
  options.digests = std::get<1>(GetParam());
  if (!options.true_get) options.message_bytes_max = 4096;  // less than a page: pieces are cut
  const uint32_t tokens = std::get<2>(GetParam());
  MoveTest test(options);
  Move move;
  RunMove(test, tokens, &move);
  ExpectContent(test, move);
  const LandedSequence& landed = **move.result;
  EXPECT_EQ(landed.prompt, test.Prompt(tokens, 7));
  EXPECT_EQ(landed.context.attempt, 3u);
  ASSERT_TRUE(landed.first.has_value());
  EXPECT_EQ(landed.first->token, 7);
  EXPECT_EQ(landed.first->logits_hash, Mix64(7));
  const kv::PageLayout& layout = test.p.pool->layout();
  EXPECT_EQ(landed.bytes,
            uint64_t{layout.PagesFor(tokens)} * layout.PieceRange(0, options.layers).bytes);
  // A sequence's pages carry its lease as owner, and generations of this pool: the header never
  // travels.
  for (const kv::PageLease& page : landed.pages) {
    kv::PageHeader header;
    memcpy(&header, page.data(), sizeof(header));
    EXPECT_EQ(header.generation, page.ref().generation.value());
    EXPECT_EQ((Id128{header.owner_high, header.owner_low}), move.lease.value());
  }
  ASSERT_EQ(test.p.ended.size(), 1u);
  EXPECT_TRUE(test.p.ended[move.lease].first.ok()) << test.p.ended[move.lease].first;
  EXPECT_EQ(test.p.ended[move.lease].second, landed.bytes);
  EXPECT_EQ(test.p.counters.bytes_sent, landed.bytes);
  EXPECT_EQ(test.d.counters.bytes_received, landed.bytes);
  EXPECT_EQ(test.p.counters.pieces_sent, test.d.counters.pieces_received);
  EXPECT_EQ(test.p.counters.transfers_completed, 1u);
  EXPECT_EQ(test.d.counters.transfers_completed, 1u);
  for (const MoveCounters* counters : {&test.p.counters, &test.d.counters}) {
    EXPECT_EQ(counters->stale_messages + counters->duplicate_messages + counters->invalid_messages,
              0u);
    EXPECT_EQ(counters->transfers_failed + counters->digest_failures + counters->lease_expiries,
              0u);
  }
  EXPECT_EQ(test.p.PagesHeld(), 0u) << "the release unpins at once, not at the end of the lease";
  ExpectNothingHeld(test, &move);
}

INSTANTIATE_TEST_SUITE_P(
    All, MoveKinds,
    ::testing::Combine(::testing::Bool(),
                       ::testing::Values(DigestMode::kOff, DigestMode::kSampled, DigestMode::kFull),
                       ::testing::Values(1u, 15u, 16u, 17u, 100u)));

TEST(Move, OnlyWhatTheTakerDoesNotHoldIsMoved) {
  MoveTest test;
  HoldBlocks(test, test.Prompt(40, 7), 2, 7);
  Move move;
  Begin(test, 40, &move);
  EXPECT_EQ(move.grant.held().blocks(), 2u);
  Compute(test, 40, move);
  test.world.RunFor(absl::Seconds(1));
  ExpectContent(test, move);
  EXPECT_EQ((*move.result)->held_tokens, 32u);
  EXPECT_EQ((*move.result)->bytes, test.p.pool->layout().PieceRange(0, 4).bytes);
  ExpectNothingHeld(test, &move);
}

TEST(Move, AMoveWithoutPiecesIsAFullTransaction) {
  MoveTest test;
  HoldBlocks(test, test.Prompt(32, 7), 2, 7);
  Move move;
  Begin(test, 32, &move);
  EXPECT_EQ(move.grant.held().blocks(), 2u);
  EXPECT_FALSE(move.result.has_value());
  Compute(test, 32, move);
  test.world.RunFor(absl::Seconds(1));
  ExpectContent(test, move);
  EXPECT_EQ((*move.result)->bytes, 0u);
  EXPECT_TRUE(test.p.ended[move.lease].first.ok());
  EXPECT_EQ(test.d.counters.transfers_completed, 1u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, BlocksOfOtherNumericsOrWithoutADomainAreNotUsed) {
  MoveTest test;
  HoldBlocks(test, test.Prompt(40, 7), 2, 7);
  ReserveCall call = test.Call(test.Prompt(40, 7));
  call.holder_numerics_id = TestId(99);
  absl::StatusOr<v1::Grant> grant = test.Reserve(call);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant->held().blocks(), 0u);
  call = test.Call(test.Prompt(40, 7));
  call.context.domain.reset();
  grant = test.Reserve(call);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant->held().blocks(), 0u);
}

TEST(Move, WhatIsReservedWaitsALimitedTimeForItsCall) {
  MoveTest test;
  Move move;
  const absl::StatusOr<v1::Grant> grant = test.Reserve(test.Call(test.Prompt(20, 7)));
  move.grant = *grant;
  move.lease = MoveTest::LeaseOf(*grant);
  ASSERT_TRUE(test.Open(*grant, 20).ok());
  Compute(test, 20, move);
  const absl::Duration wait = TakerOptions().attach_wait;
  test.world.RunFor(wait * 0.9);
  EXPECT_EQ(test.d.counters.transfers_completed, 1u);
  test.Attach(move.lease, &move.result);
  ExpectContent(test, move);

  Move late;
  const absl::StatusOr<v1::Grant> second = test.Reserve(test.Call(test.Prompt(20, 8)));
  late.grant = *second;
  late.lease = MoveTest::LeaseOf(*second);
  ASSERT_TRUE(test.Open(*second, 20).ok());
  Compute(test, 20, late, 8);
  test.world.RunFor(wait * 0.9);
  EXPECT_EQ(test.d.taker->reservations(), 1u);
  test.world.RunFor(wait * 0.2);
  EXPECT_EQ(test.d.taker->reservations(), 0u);
  test.Attach(late.lease, &late.result);
  ASSERT_TRUE(late.result.has_value());
  EXPECT_TRUE(absl::IsNotFound(late.result->status()));
  EXPECT_EQ(test.d.counters.lease_expiries, 1u);
  move.result.reset();
  ExpectNothingHeld(test, &late);
}

TEST(Move, RenewalsDoNotHoldWhatNobodyAskedFor) {
  MoveOptions options;
  options.lease = absl::Seconds(2);
  MoveTest test(options);
  Move move;
  const absl::StatusOr<v1::Grant> grant = test.Reserve(test.Call(test.Prompt(20, 7)));
  move.grant = *grant;
  move.lease = MoveTest::LeaseOf(*grant);
  ASSERT_TRUE(test.Open(*grant, 20).ok());
  test.On(test.p, [&] {  // the first layer, and then nothing more for long
    std::vector<engine::FinalPage> finals;
    std::vector<kv::PageLease> pages = *test.p.pool->Allocate(2, TestId(7), TenantId("t"));
    for (kv::PageLease& page : pages)
      finals.push_back({static_cast<uint32_t>(finals.size()), std::move(page)});
    test.p.source->Offer(move.lease, std::move(finals), 0, 1);
  });
  test.world.RunFor(absl::Seconds(1));
  EXPECT_GT(test.d.PagesHeld(), 0u);
  EXPECT_GT(test.p.PagesHeld(), 0u);
  test.world.RunFor(absl::Seconds(3.5));
  EXPECT_EQ(test.d.PagesHeld(), 0u);
  EXPECT_EQ(test.p.PagesHeld(), 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, WhoeverAskedAtOnceWaitsAsLongAsItTakes) {
  MoveTest test;
  Move move;
  Begin(test, 20, &move);
  test.world.RunFor(TakerOptions().attach_wait * 2);
  EXPECT_FALSE(move.result.has_value());
  Compute(test, 20, move);
  test.world.RunFor(absl::Seconds(1));
  ExpectContent(test, move);
  ExpectNothingHeld(test, &move);
}

TEST(Move, ASecondCallForALeaseIsRefused) {
  MoveTest test;
  Move move;
  Begin(test, 20, &move);
  Landed second;
  test.Attach(move.lease, &second);
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(absl::IsAlreadyExists(second->status()));
  Compute(test, 20, move);
  test.world.RunFor(absl::Seconds(1));
  ExpectContent(test, move);
  ExpectNothingHeld(test, &move);
}

TEST(Move, RenewalsCarryALongPrefill) {
  MoveTest test;
  Move move;
  Begin(test, 40, &move);
  test.world.RunFor(test.options.lease * 6);
  EXPECT_FALSE(move.result.has_value());
  Compute(test, 40, move);
  test.world.RunFor(absl::Seconds(1));
  ExpectContent(test, move);
  EXPECT_EQ(test.d.counters.lease_expiries + test.p.counters.lease_expiries, 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, WithoutAcknowledgementTheTakersLeaseEndsFirst) {
  MoveTest test;
  test.p.tap->on_send = [](v1::MoveMessage& message, auto&) {
    return message.has_renew_ack() ? 0 : 1;
  };
  Move move;
  Begin(test, 20, &move);
  test.world.RunFor(test.options.lease);
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsAborted(move.result->status())) << move.result->status();
  EXPECT_EQ(test.d.counters.lease_expiries, 1u);
  EXPECT_EQ(test.p.counters.lease_expiries, 0u)
      << "the holder renewed, and was told that the taker gave up";
  EXPECT_TRUE(absl::IsAborted(test.p.ended[move.lease].first));
  ExpectNothingHeld(test, &move);
}

TEST(Move, AHolderThatIsNeverCalledLosesNothing) {
  MoveTest test;
  const absl::StatusOr<v1::Grant> grant = test.Reserve(test.Call(test.Prompt(20, 7)));
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(test.d.PagesHeld(), 2u);
  test.world.RunFor(test.options.lease * 2);
  EXPECT_EQ(test.d.PagesHeld(), 0u);
  EXPECT_EQ(test.d.counters.lease_expiries, 1u);
}

TEST(Move, AGrantThatComesTooLateIsRefusedByTheTaker) {
  MoveTest test;
  Move move;
  const absl::StatusOr<v1::Grant> grant = test.Reserve(test.Call(test.Prompt(20, 7)));
  move.lease = MoveTest::LeaseOf(*grant);
  test.world.RunFor(test.options.lease * 2);
  ASSERT_TRUE(test.Open(*grant, 20).ok());
  Compute(test, 20, move);
  test.world.RunFor(absl::Seconds(1));
  EXPECT_TRUE(absl::IsAborted(test.p.ended[move.lease].first));
  EXPECT_GT(test.d.counters.stale_messages, 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, ALeaseIsServedOnce) {
  MoveTest test;
  Move move;
  Begin(test, 20, &move);
  EXPECT_TRUE(absl::IsAlreadyExists(test.Open(move.grant, 20)));
  Compute(test, 20, move);
  test.world.RunFor(absl::Seconds(1));
  EXPECT_TRUE(absl::IsAlreadyExists(test.Open(move.grant, 20)));
  ExpectContent(test, move);
  ExpectNothingHeld(test, &move);
}

TEST(Move, TheHolderChecksTheGrant) {
  MoveTest test;
  const v1::Grant good = *test.Reserve(test.Call(test.Prompt(20, 7)));
  const auto open = [&](const std::function<void(v1::Grant&)>& change) {
    v1::Grant grant = good;
    change(grant);
    return test.Open(grant, 20);
  };
  EXPECT_TRUE(absl::IsInvalidArgument(open([](v1::Grant& g) { g.set_lease_id("short"); })));
  EXPECT_TRUE(
      absl::IsInvalidArgument(open([](v1::Grant& g) { g.set_lease_id(std::string(16, '\0')); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(open([](v1::Grant& g) { g.set_holder_incarnation(5); })));
  EXPECT_TRUE(absl::IsInvalidArgument(open([](v1::Grant& g) { g.set_lease_ms(0); })));
  EXPECT_TRUE(absl::IsInvalidArgument(open([](v1::Grant& g) { g.set_lease_ms(3'600'000); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(open([](v1::Grant& g) { g.set_tokens_max(19); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(open([](v1::Grant& g) { g.set_pages_max(1); })));
  EXPECT_TRUE(absl::IsInvalidArgument(open([](v1::Grant& g) { g.mutable_held()->set_blocks(3); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      open([](v1::Grant& g) { g.mutable_addresses(0)->set_backend("tls"); })));
  EXPECT_FALSE(open([](v1::Grant& g) { g.mutable_addresses(0)->set_address("nobody"); }).ok());
  const absl::Status layout = open([](v1::Grant& g) {
    *g.mutable_layout() = ToProto(TestLayout(9));
    g.set_layout_hash("x");
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(layout));
  EXPECT_NE(layout.message().find(TestLayout(9).Describe()), absl::string_view::npos) << layout;
  EXPECT_NE(layout.message().find(TestLayout(4).Describe()), absl::string_view::npos) << layout;
  EXPECT_TRUE(test.Open(good, 20).ok());
}

TEST(Move, TheTakerChecksTheCall) {
  MoveOptions options;
  options.transfers_max = 2;
  MoveTest test(options);
  const auto reserve = [&](const std::function<void(ReserveCall&)>& change) {
    ReserveCall call = test.Call(test.Prompt(20, 7));
    change(call);
    return test.Reserve(call).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(reserve([](ReserveCall& c) { c.prompt.clear(); })));
  EXPECT_TRUE(
      absl::IsInvalidArgument(reserve([](ReserveCall& c) { c.prompt[3] = kTestVocabulary; })));
  EXPECT_TRUE(absl::IsInvalidArgument(reserve([](ReserveCall& c) { c.prompt[3] = -1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(reserve([](ReserveCall& c) { c.prompt.resize(4097); })));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      reserve([](ReserveCall& c) { c.context.deadline = absl::InfinitePast(); })));
  const absl::Status layout = reserve([](ReserveCall& c) {
    c.holder_layout_hash = TestId(5);
    c.holder_layout = "theirs";
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(layout));
  EXPECT_NE(layout.message().find("theirs"), absl::string_view::npos);
  EXPECT_NE(layout.message().find(TestLayout(4).Describe()), absl::string_view::npos);
  EXPECT_TRUE(absl::IsResourceExhausted(reserve([](ReserveCall& c) { c.prompt.resize(17 * 16); })));
  EXPECT_EQ(test.d.PagesHeld(), 0u) << "a refusal takes nothing";
  EXPECT_TRUE(reserve([](ReserveCall&) {}).ok());
  EXPECT_TRUE(reserve([](ReserveCall&) {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(reserve([](ReserveCall&) {})));
}

TEST(Move, TheFirstGrowthStepIsReserved) {
  MoveTest test;
  ReserveCall call = test.Call(test.Prompt(16, 7));
  call.emitted_tokens = 20;
  call.max_tokens = 1000;
  ASSERT_TRUE(test.Reserve(call).ok());
  EXPECT_EQ(test.d.PagesHeld(), test.d.pool->layout().PagesFor(16 + 20 + kTestPageTokens));
}

TEST(Move, WithdrawnMovesNothing) {
  MoveTest test;
  Move move;
  Begin(test, 20, &move);
  test.world.RunFor(absl::Milliseconds(10));
  test.On(test.p, [&] { test.p.source->Withdraw(move.lease, "finished with its first token"); });
  test.world.RunFor(absl::Milliseconds(10));
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsAborted(move.result->status()));
  EXPECT_TRUE(test.p.ended.empty()) << "the worker withdrew it itself";
  EXPECT_EQ(test.p.PagesHeld(), 0u);
  EXPECT_EQ(test.d.PagesHeld(), 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, WithdrawnPagesStayPinnedUntilTheTakerHasLetGo) {
  MoveTest test(SlowLink());
  Move move;
  RunUntilReading(test, &move);
  test.On(test.p, [&] { test.p.source->Withdraw(move.lease, "cancelled"); });
  EXPECT_EQ(test.p.PagesHeld(), 2u);
  test.world.RunFor(absl::Seconds(1));
  EXPECT_EQ(test.p.PagesHeld(), 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, ALostWithdrawalIsLearntFromTheNextRenewal) {
  MoveTest test;
  bool lose = true;
  test.p.tap->on_send = [&](v1::MoveMessage& message, auto&) {
    // Without the commit the taker still waits.
    if (message.has_commit()) return 0;
    return message.has_withdrawn() && std::exchange(lose, false) ? 0 : 1;
  };
  Move move;
  RunMove(test, 20, &move);
  test.On(test.p, [&] { test.p.source->Withdraw(move.lease, "cancelled"); });
  test.world.RunFor(test.options.lease * 0.7);
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsAborted(move.result->status()));
  EXPECT_EQ(test.p.PagesHeld(), 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, ReleaseGivesEverythingBack) {
  MoveTest test;
  Move move;
  Begin(test, 20, &move);
  Compute(test, 20, move);
  test.On(test.d, [&] {
    if (!move.result.has_value()) test.d.taker->Release(move.lease, "cancelled");
  });
  test.world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(move.result.has_value());
  ExpectNothingHeld(test, &move);
}

TEST(Move, ReadsUnderWayHoldTheirPagesInQuarantine) {
  MoveTest test(SlowLink());
  Move move;
  RunUntilReading(test, &move);
  test.On(test.d, [&] { test.d.taker->Release(move.lease, "cancelled"); });
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsCancelled(move.result->status()));
  EXPECT_EQ(test.d.pool->counts().quarantined, 2u);
  EXPECT_EQ(test.d.counters.quarantined_now, 2u);
  EXPECT_EQ(test.d.counters.quarantined_since_ns,
            static_cast<uint64_t>(absl::ToUnixNanos(test.world.Now())));
  test.world.RunFor(absl::Milliseconds(300));
  EXPECT_EQ(test.d.pool->counts().quarantined, 0u);
  EXPECT_EQ(test.d.counters.quarantined_since_ns, 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, AReadThatNeverEndsIsEndedByClosingItsConnection) {
  MoveTest test(SlowLink());
  Move move;
  RunUntilReading(test, &move);
  test.network.Cut(test.p.inner->node(), test.d.inner->node());
  test.world.RunFor(test.options.lease * 1.5);
  EXPECT_TRUE(absl::IsAborted(move.result->status())) << "lapsed: no acknowledgement came";
  EXPECT_EQ(test.d.pool->counts().quarantined, 2u);
  test.world.RunFor(test.options.lease);
  EXPECT_EQ(test.d.pool->counts().quarantined, 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, ATakerThatWasStoppedThrowsAwayWhatItRead) {
  MoveOptions options = SlowLink();
  options.digests = DigestMode::kOff;
  MoveTest test(options);
  Move move;
  RunUntilReading(test, &move);
  test.d.loop.Pause();
  test.world.RunFor(options.lease * 2);
  EXPECT_EQ(test.p.PagesHeld(), 0u) << "the holder's lease is over";
  test.d.loop.Resume();
  test.world.RunFor(absl::Seconds(1));
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsAborted(move.result->status())) << move.result->status();
  ExpectNothingHeld(test, &move);
}

TEST(Move, ALostReleaseIsRepeatedUntilAcknowledged) {
  MoveTest test;
  int lose = 3;
  test.d.tap->on_send = [&](v1::MoveMessage& message, auto&) {
    return message.has_released() && lose-- > 0 ? 0 : 1;
  };
  Move move;
  Begin(test, 20, &move);
  Compute(test, 20, move);
  test.world.RunFor(test.options.lease * 0.8);
  ExpectContent(test, move);
  EXPECT_EQ(test.p.PagesHeld(), 0u);
  EXPECT_TRUE(test.p.ended[move.lease].first.ok());
  int released = 0;
  for (const v1::MoveMessage& message : test.d.tap->sent) released += message.has_released();
  EXPECT_EQ(released, 4);
  ExpectNothingHeld(test, &move);
}

TEST(Move, WhenEveryReleaseIsLostTheHolderWaitsForItsLease) {
  MoveTest test;
  test.d.tap->on_send = [&](v1::MoveMessage& message, auto&) {
    return message.has_released() ? 0 : 1;
  };
  Move move;
  Begin(test, 20, &move);
  Compute(test, 20, move);
  test.world.RunFor(test.options.lease * 0.9);
  ExpectContent(test, move);
  EXPECT_EQ(test.p.PagesHeld(), 2u);
  test.world.RunFor(test.options.lease * 0.2);
  EXPECT_EQ(test.p.PagesHeld(), 0u);
  EXPECT_TRUE(absl::IsAborted(test.p.ended[move.lease].first));
  ExpectNothingHeld(test, &move);
}
}  // namespace
}  // namespace sluice::handoff
