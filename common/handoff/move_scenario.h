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
