// Peers whose bytes are wrong or whose connections break again and again, alone and in a move.
#include "handoff/peers.h"

#include <gtest/gtest.h>

#include <array>

#include "handoff/move_scenario.h"

namespace sluice::handoff {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const Incarnation kPeer(7);
const Incarnation kOther(8);

TEST(Peers, WrongDigestsCloseTheDoorForLongerEachTime) {
  MoveCounters counters;
  Peers peers({}, counters);
  absl::Time now = kStart;
  for (absl::Duration closed : {absl::Seconds(30), absl::Minutes(1), absl::Minutes(2),
                                absl::Minutes(4), absl::Minutes(5), absl::Minutes(5)}) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(peers.MayTake(kPeer, now).ok());
      peers.OnDigestFailure(kPeer, now);
    }
    const absl::Status refused = peers.MayTake(kPeer, now + closed - absl::Milliseconds(1));
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_NE(refused.message().find("incarnation 7 had wrong digests 3 times"),
              absl::string_view::npos)
        << refused;
    EXPECT_TRUE(peers.MayTake(kOther, now).ok());
    now += closed;
  }
  EXPECT_TRUE(peers.MayTake(kPeer, now).ok());
  EXPECT_EQ(counters.peer_quarantines, 6u);
  EXPECT_EQ(counters.peer_refusals, 6u);
}

TEST(Peers, RareDigestFailuresDoNot) {
  MoveCounters counters;
  Peers peers({}, counters);
  for (int i = 0; i < 20; ++i) peers.OnDigestFailure(kPeer, kStart + absl::Seconds(5.1) * i);
  EXPECT_TRUE(peers.MayTake(kPeer, kStart + absl::Seconds(100)).ok());
  EXPECT_EQ(counters.peer_quarantines, 0u);
}

TEST(Peers, ReconnectingWaitsLongerEachTimeUntilAMoveWorks) {
  MoveCounters counters;
  Peers peers({}, counters);
  absl::Time now = kStart;
  peers.OnConnectionFailed(kPeer, now);
  EXPECT_TRUE(peers.MayConnect(kPeer, now).ok()) << "the first time at once";
  for (int64_t wait_ms : {50, 100, 200, 400, 800, 1000, 1000}) {
    peers.OnConnectionFailed(kPeer, now);
    EXPECT_TRUE(absl::IsUnavailable(
        peers.MayConnect(kPeer, now + absl::Milliseconds(wait_ms) - absl::Nanoseconds(1))));
    now += absl::Milliseconds(wait_ms);
    EXPECT_TRUE(peers.MayConnect(kPeer, now).ok());
  }
  peers.OnConnectionFailed(kPeer, now);
  peers.OnMoved(kPeer);
  EXPECT_TRUE(peers.MayConnect(kPeer, now).ok());
  peers.OnConnectionFailed(kPeer, now);
  EXPECT_TRUE(peers.MayConnect(kPeer, now).ok());
}

TEST(Peers, OnlySoManyAreRemembered) {
  MoveCounters counters;
  PeerOptions options;
  options.peers_max = 3;
  Peers peers(options, counters);
  for (uint64_t i = 1; i <= 10; ++i)
    peers.OnConnectionFailed(Incarnation(i), kStart + absl::Seconds(static_cast<int64_t>(i)));
  EXPECT_EQ(peers.size(), 3u);
  // The last one is among them: another failure makes it wait.
  peers.OnConnectionFailed(Incarnation(10), kStart + absl::Seconds(11));
  EXPECT_FALSE(peers.MayConnect(Incarnation(10), kStart + absl::Seconds(11)).ok());
}

TEST(Move, AHolderWithDamagedPagesIsLeftAloneForAWhile) {
  MoveTest test;
  bool damage = true;
  test.p.tap->on_send = [&](v1::MoveMessage& message, std::vector<uint8_t>&) {
    for (const v1::Piece& piece : message.offer().pieces())
      if (damage) test.p.pool->PageData(PageIndex(0))[piece.offset()] ^= 1;
    return 1;
  };
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Move move;
    RunMove(test, 20, &move, seed);
    ASSERT_TRUE(move.result.has_value());
    EXPECT_TRUE(absl::IsAborted(move.result->status()));
  }
  EXPECT_EQ(test.d.counters.peer_quarantines, 1u);
  damage = false;
  EXPECT_TRUE(absl::IsFailedPrecondition(test.Reserve(test.Call(test.Prompt(20, 4))).status()));
  ReserveCall other = test.Call(test.Prompt(20, 4));
  other.holder = Incarnation(4711);
  EXPECT_TRUE(test.Reserve(other).ok());
  test.world.RunFor(absl::Seconds(30));
  Move move;
  RunMove(test, 20, &move, 5);
  ExpectContent(test, move, 5);
  ExpectNothingHeld(test, &move);
}

TEST(Move, AConnectionThatBreaksAgainAndAgainIsTriedLessOften) {
  std::array<Move, 3> moves;  // each waits for its lease to lapse
  MoveTest test(SlowLink());
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Move& move = moves[seed - 1];
    Begin(test, 20, &move, seed);
    test.network.Disconnect(test.p.inner->node(), test.d.inner->node());
    test.world.RunFor(seed < 3 ? absl::Seconds(5) : absl::Milliseconds(1));
    EXPECT_TRUE(absl::IsUnavailable(test.p.ended[move.lease].first));
  }
  // Twice in a row would be 50 ms.
  const auto grant = test.Reserve(test.Call(test.Prompt(20, 4)));
  ASSERT_TRUE(grant.ok());
  EXPECT_TRUE(absl::IsUnavailable(test.Open(*grant, 20)));
  EXPECT_EQ(test.p.counters.peer_refusals, 1u);
  EXPECT_EQ(test.p.counters.pinned_since_ns, 0u);
  test.world.RunFor(absl::Milliseconds(100));
  EXPECT_TRUE(test.Open(*grant, 20).ok());
}

TEST(Move, TheAgeOfTheOldestPinsIsKnown) {
  MoveTest test(SlowLink());
  Move first;
  RunUntilReading(test, &first);
  const absl::Time offered = test.world.Now() - absl::Milliseconds(110);
  EXPECT_EQ(test.p.counters.pinned_since_ns, static_cast<uint64_t>(absl::ToUnixNanos(offered)));
  test.world.RunFor(absl::Seconds(2));
  ExpectContent(test, first);
  EXPECT_EQ(test.p.counters.pinned_since_ns, 0u);
}

// Well-formed, of another holder, of another time, or used before.
TEST(Move, ForeignAndReplayedGrantsAreRefusedAndCounted) {
  MoveTest test;
  Move move;
  RunMove(test, 20, &move);
  ExpectContent(test, move);
  EXPECT_EQ(test.p.counters.grants_refused, 0u);
  EXPECT_TRUE(absl::IsAlreadyExists(test.Open(move.grant, 20)));
  EXPECT_EQ(test.p.counters.grants_refused, 1u);
  v1::Grant foreign = move.grant;
  foreign.set_lease_id(TestId(77).ToBytes());
  foreign.set_holder_incarnation(test.p.incarnation.value() + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(test.Open(foreign, 20)));
  v1::Grant layout = move.grant;
  layout.set_lease_id(TestId(78).ToBytes());
  layout.set_layout_hash(TestId(5).ToBytes());
  EXPECT_TRUE(absl::IsFailedPrecondition(test.Open(layout, 20)));
  EXPECT_EQ(test.p.counters.grants_refused, 3u);
  EXPECT_EQ(test.p.source->transfers(), 0u);

  // A grant that its taker does not know: nothing is pinned for long, and nothing lands.
  v1::Grant invented = move.grant;
  invented.set_lease_id(TestId(79).ToBytes());
  const uint64_t landed = test.d.counters.transfers_completed;
  ASSERT_TRUE(test.Open(invented, 20).ok());
  test.On(test.p, [&] { test.ComputeAndOffer(MoveTest::LeaseOf(invented), 9, 20, 0); });
  test.world.RunFor(absl::Seconds(1));
  EXPECT_GT(test.d.counters.stale_messages, 0u);
  EXPECT_EQ(test.d.counters.transfers_completed, landed);
  EXPECT_EQ(test.p.source->transfers(), 0u);
  ExpectNothingHeld(test, &move);
}

}  // namespace
}  // namespace sluice::handoff
