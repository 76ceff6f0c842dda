// What goes wrong on the way: lost, repeated and reordered messages, full queues, damage, deaths of
// either side at every moment, faults at every named point. Each move ends cleanly, and nobody is
// left with a page.
#include <gtest/gtest.h>

#include "handoff/move_scenario.h"

namespace sluice::handoff {
namespace {

// A message of each kind that is lost once: either the move completes, or both sides learn of its
// end, in bounded time.
class LostOnce : public ::testing::TestWithParam<std::tuple<v1::MoveMessage::BodyCase, int>> {};

TEST_P(LostOnce, EndsCleanly) {
  MoveTest test;
  const auto [kind, nth] = GetParam();
  int count = 0;
  const auto lose = [&, kind = kind, nth = nth](v1::MoveMessage& message, auto&) {
    return message.body_case() == kind && count++ == nth ? 0 : 1;
  };
  test.p.tap->on_send = lose;
  test.d.tap->on_send = lose;
  Move move;
  Begin(test, 40, &move);
  test.world.RunFor(test.options.lease * 0.6);
  Compute(test, 40, move);
  test.world.RunFor(absl::Minutes(2));
  ASSERT_TRUE(move.result.has_value());
  if (move.result->ok()) ExpectContent(test, move);
  EXPECT_EQ(test.p.ended.size(), 1u);
  EXPECT_EQ(test.p.ended[move.lease].first.ok(), move.result->ok());
  ExpectNothingHeld(test, &move);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, LostOnce,
    ::testing::Combine(::testing::Values(v1::MoveMessage::kOffer, v1::MoveMessage::kCommit,
                                         v1::MoveMessage::kRenew, v1::MoveMessage::kRenewAck,
                                         v1::MoveMessage::kReleased, v1::MoveMessage::kReleasedAck),
                       ::testing::Values(0, 1)));

TEST(Move, DuplicatesOfEveryMessageChangeNothing) {
  MoveTest test;
  const auto twice = [](v1::MoveMessage&, auto&) { return 2; };
  test.p.tap->on_send = twice;
  test.d.tap->on_send = twice;
  Move move;
  Begin(test, 40, &move);
  test.world.RunFor(test.options.lease * 0.6);
  Compute(test, 40, move);
  test.world.RunFor(absl::Seconds(1));
  ExpectContent(test, move);
  EXPECT_GT(test.d.counters.duplicate_messages, 0u);
  EXPECT_EQ(test.d.counters.pieces_received, test.p.counters.pieces_sent);
  EXPECT_EQ(test.d.counters.transfers_failed + test.p.counters.transfers_failed, 0u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, TheCommitMayOvertakeOffers) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    MoveOptions options;
    options.seed = seed;
    options.link.delay_max = absl::Milliseconds(5);
    options.link.reorder = 0.7;
    MoveTest test(options);
    Move move;
    RunMove(test, 60, &move);
    ExpectContent(test, move);
    ExpectNothingHeld(test, &move);
  }
}

TEST(Move, AFullSendQueueOnlyDelays) {
  MoveTest test;
  Move move;
  Begin(test, 40, &move);
  test.p.tap->refuse_sends = true;
  Compute(test, 40, move);
  test.world.RunFor(absl::Milliseconds(50));
  EXPECT_FALSE(move.result.has_value());
  test.p.tap->refuse_sends = false;
  test.world.RunFor(absl::Milliseconds(50));
  ExpectContent(test, move);
  ExpectNothingHeld(test, &move);
}

TEST(Move, DamagedBytesAreRefused) {
  MoveOptions options;
  options.true_get = false;
  MoveTest test(options);
  test.p.tap->on_send = [](v1::MoveMessage&, std::vector<uint8_t>& payload) {
    if (!payload.empty()) payload[payload.size() / 2] ^= 1;
    return 1;
  };
  Move move;
  RunMove(test, 20, &move);
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsAborted(move.result->status()));
  EXPECT_EQ(test.d.counters.digest_failures, 1u);
  EXPECT_TRUE(absl::IsAborted(test.p.ended[move.lease].first));
  ExpectNothingHeld(test, &move);
}

// Codes without their scales would be attended as other values. The pieces are whole in every other
// way: counts, places and the layout that both sides agreed on.
TEST(Move, APageThatLacksAComponentIsRefused) {
  for (kernels::KvFormat format : {kernels::KvFormat::kGqaFp8c, kernels::KvFormat::kGqaInt8c}) {
    for (bool true_get : {true, false}) {
      MoveOptions options;
      options.true_get = true_get;
      options.format = format;
      options.digests = DigestMode::kOff;
      MoveTest test(options);
      const kernels::KvLayerView view = test.p.pool->layout().LayerView(0);
      const uint32_t scales = view.v_offset - view.k_scale_offset;  // as large as those of V
      test.p.tap->on_send = [&](v1::MoveMessage& message, std::vector<uint8_t>& payload) {
        if (!message.has_offer()) return 1;
        for (v1::Piece& piece : *message.mutable_offer()->mutable_pieces()) {
          piece.set_bytes(piece.bytes() - scales);
          if (!payload.empty()) payload.resize(payload.size() - scales);
        }
        return 1;
      };
      Move move;
      RunMove(test, 20, &move);
      ASSERT_TRUE(move.result.has_value());
      EXPECT_FALSE(move.result->ok());
      EXPECT_NE(move.result->status().message().find("its layers have"), absl::string_view::npos)
          << move.result->status();
      ExpectNothingHeld(test, &move);
    }
  }
}

TEST(Move, AFailedReadEndsTheMove) {
  MoveOptions options;
  options.link.fetch_error = 1.0;
  MoveTest test(options);
  Move move;
  RunMove(test, 40, &move);
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsUnavailable(move.result->status()));
  ExpectNothingHeld(test, &move);
}

// A link that fails for a moment may swallow reads without breaking the connection: renewals go on,
// and neither the lease nor the connection ends the wait.
TEST(Move, ReadsThatNeverEndEndTheMove) {
  MoveTest test(SlowLink());
  Move move;
  RunUntilReading(test, &move);
  test.network.Cut(test.p.inner->node(), test.d.inner->node());
  test.world.RunFor(absl::Milliseconds(200));
  test.network.Mend(test.p.inner->node(), test.d.inner->node());
  test.world.RunFor(test.options.lease * 3);
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsUnavailable(move.result->status())) << move.result->status();
  EXPECT_EQ(test.d.counters.quarantined_now, 2u);
  ExpectNothingHeld(test, &move);
}

TEST(Move, TheRequestsDeadlineEndsTheReservation) {
  MoveTest test;
  ReserveCall call = test.Call(test.Prompt(20, 7));
  call.context.deadline = test.world.Now() + absl::Seconds(3);
  Move move;
  move.grant = *test.Reserve(call);
  EXPECT_EQ(move.grant.deadline_ms(), 3000u);
  move.lease = MoveTest::LeaseOf(move.grant);
  ASSERT_TRUE(test.Open(move.grant, 20).ok());
  test.Attach(move.lease, &move.result);
  test.world.RunFor(absl::Seconds(4));
  ASSERT_TRUE(move.result.has_value());
  EXPECT_TRUE(absl::IsDeadlineExceeded(move.result->status()));
  EXPECT_TRUE(absl::IsAborted(test.p.ended[move.lease].first));
  ExpectNothingHeld(test, &move);
}

// Either side dies at each moment of a move: the other learns of it, and its pages come back.
class PeerDown : public ::testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(PeerDown, TheSurvivorGetsItsPagesBack) {
  const auto [holder_dies, step] = GetParam();
  MoveTest test(SlowLink());
  Move move;
  Begin(test, 40, &move);
  test.world.RunFor(absl::Milliseconds(150));
  Compute(test, 40, move);
  test.world.RunFor(absl::Milliseconds(50) * step);
  MoveNode& dead = holder_dies ? test.p : test.d;
  MoveNode& survivor = holder_dies ? test.d : test.p;
  test.network.Crash(dead.inner->node());
  dead.loop.Crash();
  test.world.RunFor(test.options.lease * 3);
  if (holder_dies) {
    ASSERT_TRUE(move.result.has_value());
    if (move.result->ok())
      ExpectContent(test, move);
    else
      EXPECT_TRUE(absl::IsUnavailable(move.result->status())) << move.result->status();
    move.result.reset();
    EXPECT_EQ(survivor.taker->reservations(), 0u);
  } else {
    EXPECT_EQ(survivor.ended.size(), 1u);
    EXPECT_EQ(survivor.source->transfers(), 0u);
  }
  EXPECT_EQ(survivor.PagesHeld(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Moments, PeerDown,
                         ::testing::Combine(::testing::Bool(), ::testing::Range(0, 14)));

TEST(Move, AHolderKeepsPagesInPlaceWhenOnlyTheConnectionBroke) {
  MoveTest test(SlowLink());
  Move move;
  RunUntilReading(test, &move);
  test.network.Disconnect(test.p.inner->node(), test.d.inner->node());
  test.world.RunFor(absl::Seconds(1));
  EXPECT_TRUE(absl::IsUnavailable(test.p.ended[move.lease].first));
  EXPECT_TRUE(absl::IsUnavailable(move.result->status()));
  EXPECT_EQ(test.p.PagesHeld(), 2u) << "a reader may be alive";
  ExpectNothingHeld(test, &move);
}

}  // namespace
}  // namespace sluice::handoff
