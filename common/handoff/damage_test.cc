// Pages that are not what was offered, injected one piece at a time on both ways they travel: which
// digests catch what, and that nothing damaged is handed on where digests are full. What does not
// need digests (another incarnation, generation or layout) is caught without.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "handoff/move_scenario.h"

namespace sluice::handoff {
namespace {

constexpr uint32_t kBlocks = 12;
constexpr uint32_t kTokens = kBlocks * kTestPageTokens;
constexpr uint32_t kLayers = 2;

enum class Harm { kBitFlip, kTorn, kSwapped, kStale };
constexpr Harm kHarms[] = {Harm::kBitFlip, Harm::kTorn, Harm::kSwapped, Harm::kStale};

// Does `harm` to the bytes of one piece; `other` is the same layer of another block.
void Hurt(const MoveTest& test, Harm harm, absl::Span<uint8_t> bytes, absl::Span<uint8_t> other) {
  switch (harm) {
    case Harm::kBitFlip:
      bytes[bytes.size() / 3] ^= 0x04;
      return;
    case Harm::kTorn: {  // the second half belongs to the page's next owner
      const std::vector<uint8_t> next = test.Content(99, 0, 0);
      std::copy(next.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), next.end(),
                bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2));
      return;
    }
    case Harm::kSwapped:
      std::swap_ranges(bytes.begin(), bytes.end(), other.begin());
      return;
    case Harm::kStale: {  // the page went to another sequence
      const std::vector<uint8_t> next = test.Content(99, 0, 0);
      std::copy(next.begin(), next.end(), bytes.begin());
      return;
    }
  }
}

// Where the bytes of piece `i` of an offer lie when it is sent: in the holder's memory, or in the
// message.
absl::Span<uint8_t> BytesOf(MoveTest& test, const v1::Offer& offer, int i,
                            std::vector<uint8_t>& payload) {
  const v1::Piece& piece = offer.pieces(i);
  if (!offer.inline_payload())
    return {test.p.pool->PageData(PageIndex(0)) + piece.offset(), piece.bytes()};
  size_t at = 0;
  for (int before = 0; before < i; ++before) at += offer.pieces(before).bytes();
  return absl::MakeSpan(payload).subspan(at, piece.bytes());
}

class Damage : public ::testing::TestWithParam<std::tuple<bool, DigestMode>> {};

TEST_P(Damage, OfAnyPieceIsCaughtByItsDigest) {
  MoveOptions options;
  options.true_get = std::get<0>(GetParam());
  options.digests = std::get<1>(GetParam());
  options.layers = kLayers;
  int injected = 0, caught = 0, wanted = 0;
  for (Harm harm : kHarms) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        MoveTest test(options);
        int hits = 0;
        test.p.tap->on_send = [&](v1::MoveMessage& message, std::vector<uint8_t>& payload) {
          if (!message.has_offer()) return 1;
          const v1::Offer& offer = message.offer();
          for (int i = 0; i < offer.pieces_size(); ++i) {
            if (offer.pieces(i).block() != block || offer.pieces(i).layer_begin() != layer)
              continue;
            ++hits;
            Hurt(test, harm, BytesOf(test, offer, i, payload),
                 BytesOf(test, offer, i == 0 ? 1 : 0, payload));
          }
          return 1;
        };
        Move move;
        Begin(test, kTokens, &move);
        test.On(test.p, [&] { test.ComputeAndOffer(move.lease, 7, kTokens, 0, /*group=*/1); });
        test.world.RunFor(absl::Seconds(1));
        ASSERT_EQ(hits, 1);
        ASSERT_TRUE(move.result.has_value());
        ++injected;
        // A swap damages the first or the second block of its layer as well.
        const bool seen =
            WantsDigest(options.digests, block, layer) ||
            (harm == Harm::kSwapped && WantsDigest(options.digests, block == 0 ? 1 : 0, layer));
        wanted += seen ? 1 : 0;
        if (seen) {
          EXPECT_TRUE(absl::IsAborted(move.result->status())) << move.result->status();
          EXPECT_EQ(test.d.counters.digest_failures, 1u);
          caught += move.result->ok() ? 0 : 1;
        } else {
          ASSERT_TRUE(move.result->ok()) << move.result->status();
          EXPECT_FALSE(test.Holds((*move.result)->pages[block], 7, block)) << "the damage is none";
        }
        ExpectNothingHeld(test, &move);
      }
    }
  }
  EXPECT_EQ(caught, wanted);
  if (options.digests == DigestMode::kFull) {
    EXPECT_EQ(caught, injected);
  } else if (options.digests == DigestMode::kOff) {
    EXPECT_EQ(caught, 0);
  } else {
    EXPECT_GT(caught, 0);
    EXPECT_LT(caught, injected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Damage,
    ::testing::Combine(::testing::Bool(), ::testing::Values(DigestMode::kOff, DigestMode::kSampled,
                                                            DigestMode::kFull)));

// The holder was restarted and its memory belongs to another life of it; a block comes as another
// page than before; a piece has the size or the place that another layout gives it.
class Contradiction : public ::testing::TestWithParam<std::tuple<bool, std::string>> {};

TEST_P(Contradiction, IsRefusedWithoutDigests) {
  const auto [true_get, kind] = GetParam();
  MoveOptions options;
  options.true_get = true_get;
  options.digests = DigestMode::kOff;
  options.layers = kLayers;
  MoveTest test(options);
  test.p.tap->on_send = [&, kind = kind](v1::MoveMessage& message, std::vector<uint8_t>& payload) {
    if (!message.has_offer()) return 1;
    v1::Offer& offer = *message.mutable_offer();
    if (kind == "incarnation") offer.set_holder_incarnation(offer.holder_incarnation() + 1);
    if (offer.pieces().empty()) return 1;
    v1::Piece& piece = *offer.mutable_pieces(0);
    if (kind == "generation" && piece.layer_begin() > 0)
      piece.set_generation(piece.generation() + 1);
    if (kind == "place") piece.set_offset(piece.offset() + 64);
    if (kind == "size") {
      piece.set_bytes(piece.bytes() - 64);
      if (offer.inline_payload()) payload.resize(payload.size() - 64);
    }
    return 1;
  };
  Move move;
  Begin(test, kTokens, &move);
  test.On(test.p, [&] { test.ComputeAndOffer(move.lease, 7, kTokens, 0, /*group=*/1); });
  test.world.RunFor(test.options.lease * 2);
  ASSERT_TRUE(move.result.has_value());
  EXPECT_FALSE(move.result->ok());
  const bool stale = kind == "incarnation" || kind == "generation";
  EXPECT_GT(stale ? test.d.counters.stale_messages : test.d.counters.invalid_messages, 0u);
  EXPECT_EQ(test.d.counters.transfers_completed, 0u);
  ExpectNothingHeld(test, &move);
}

INSTANTIATE_TEST_SUITE_P(All, Contradiction,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values("incarnation", "generation", "place",
                                                              "size")));

}  // namespace
}  // namespace sluice::handoff
