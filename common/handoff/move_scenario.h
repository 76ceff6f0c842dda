// One move from grant to landing, step by step, and what must hold at its end. For tests of this
// folder.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "handoff/move_test_support.h"

namespace sluice::handoff {

using Landed = std::optional<absl::StatusOr<LandedSequence>>;

// One move from grant to landing; content and counters are for the test to look at.
struct Move {
  v1::Grant grant;
  LeaseId lease;
  Landed result;
};

inline void Begin(MoveTest& test, uint32_t tokens, Move* move, uint64_t seed = 7) {
  const absl::StatusOr<v1::Grant> grant = test.Reserve(test.Call(test.Prompt(tokens, seed)));
  ASSERT_TRUE(grant.ok()) << grant.status();
  move->grant = *grant;
  move->lease = MoveTest::LeaseOf(*grant);
  ASSERT_TRUE(test.Open(*grant, tokens).ok());
  test.Attach(move->lease, &move->result);
}

inline void Compute(MoveTest& test, uint32_t tokens, const Move& move, uint64_t seed = 7) {
  test.On(test.p,
          [&] { test.ComputeAndOffer(move.lease, seed, tokens, move.grant.held().blocks()); });
}

// A whole move; a second is ample where nothing goes wrong.
inline void RunMove(MoveTest& test, uint32_t tokens, Move* move, uint64_t seed = 7) {
  Begin(test, tokens, move, seed);
  Compute(test, tokens, *move, seed);
  test.world.RunFor(absl::Seconds(1));
}

// Messages and reads take 100 ms, so that a test can act in the middle of a move.
inline MoveOptions SlowLink() {
  MoveOptions options;
  options.link.delay_min = options.link.delay_max = absl::Milliseconds(100);
  return options;
}

// On a slow link: a move of two pages up to where all its four pieces are being read.
inline void RunUntilReading(MoveTest& test, Move* move) {
  Begin(test, 20, move);
  test.world.RunFor(absl::Milliseconds(200));
  Compute(test, 20, *move);
  test.world.RunFor(absl::Milliseconds(110));
  ASSERT_EQ(test.d.taker->fetches_outstanding(), 4u);
}

// Publishes the prompt's full blocks on the taker, as a decode worker's engine does.
inline void HoldBlocks(MoveTest& test, const std::vector<request::TokenId>& prompt, uint32_t blocks,
                       uint64_t seed) {
  const kv::KeyContext context{TestId(1), TestId(2), test.d.pool->layout().hash(), ""};
  const std::vector<kv::BlockKey> keys =
      kv::BlockKeys(*test.Call(prompt).context.domain, context, prompt, kTestPageTokens);
  std::vector<kv::PageLease> pages = *test.d.pool->Allocate(blocks, TestId(9), TenantId("t"));
  for (uint32_t block = 0; block < blocks; ++block) {
    test.Write(pages[block], seed, block);
    test.d.index->Insert(keys[block], block == 0 ? kv::BlockKey() : keys[block - 1], pages[block],
                         TenantId("t"));
  }
}

inline void ExpectContent(const MoveTest& test, const Move& move, uint64_t seed = 7) {
  ASSERT_TRUE(move.result.has_value());
  ASSERT_TRUE(move.result->ok()) << move.result->status();
  const LandedSequence& landed = **move.result;
  const uint32_t blocks =
      test.d.pool->layout().PagesFor(static_cast<uint32_t>(landed.prompt.size()));
  ASSERT_GE(landed.pages.size(), blocks);
  for (uint32_t block = 0; block < blocks; ++block) {
    EXPECT_TRUE(test.Holds(landed.pages[block], seed, block)) << "block " << block;
  }
}

// After everything has ended, no page of either pool is held by anybody.
inline void ExpectNothingHeld(MoveTest& test, Move* move) {
  move->result.reset();
  test.world.RunFor(test.options.lease * 3);
  EXPECT_EQ(test.p.PagesHeld(), 0u);
  EXPECT_EQ(test.d.PagesHeld(), 0u);
  EXPECT_EQ(test.p.source->transfers(), 0u);
  EXPECT_EQ(test.d.taker->reservations(), 0u);
  EXPECT_EQ(test.d.taker->fetches_outstanding(), 0u);
  EXPECT_EQ(test.d.counters.quarantined_now, 0u);
}

}  // namespace sluice::handoff
