// Tenants with budgets: whose sequences end or are preempted when pages run out.
#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace sluice::engine {
namespace {

const TenantId kT("t"), kU("u");

SequenceSpec SpecOf(const TenantId& tenant, uint64_t id, size_t prompt, uint32_t max_tokens) {
  SequenceSpec spec = LocalSpec(id, RandomPrompt(id, prompt), max_tokens);
  spec.tenant = tenant;
  spec.domain = TestDomain(tenant.value());
  return spec;
}

kv::TenantBudget Budget(TestEngine& engine, const TenantId& tenant, uint64_t own_pages,
                        uint64_t limit_pages) {
  const uint64_t page = engine.pool().layout().page_bytes();
  return {tenant, own_pages * page, own_pages * page, limit_pages * page};
}

TEST(EngineShares, ASequenceThatOutgrowsItsTenantsLimitEndsAlone) {
  TestEngineOptions options;
  options.pages = 32;
  TestEngine engine(options);
  engine.pool().SetBudgets({{Budget(engine, kT, 4, 4), Budget(engine, kU, 16, 32)}, {}});
  ASSERT_TRUE(engine.Submit(SpecOf(kU, 1, 60, 200)).ok());
  ASSERT_TRUE(engine.Submit(SpecOf(kT, 2, 60, 500)).ok());
  engine.Drain();
  EXPECT_TRUE(kv::IsBeyondLimit(engine.record(2).status)) << engine.record(2).status;
  EXPECT_EQ(engine.record(2).tokens.size(), 69u);  // the last of them would be the 129th token
  EXPECT_TRUE(engine.record(1).status.ok());
  EXPECT_EQ(engine.record(1).stats.preemptions, 0u);
}

TEST(EngineShares, APromptBeyondItsTenantsLimitIsRefusedAndTheOthersRun) {
  TestEngineOptions options;
  options.pages = 32;
  TestEngine engine(options);
  engine.pool().SetBudgets({{Budget(engine, kT, 6, 6)}, {}});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(engine.Submit(SpecOf(kT, id, 90, 4)).ok());
  engine.Drain();
  EXPECT_TRUE(engine.record(1).status.ok());
  EXPECT_TRUE(engine.record(2).status.ok());
  EXPECT_TRUE(kv::IsBeyondLimit(engine.record(3).status)) << engine.record(3).status;
  // Once they are done it may: what they left cached makes room.
  EXPECT_TRUE(engine.Run(SpecOf(kT, 4, 150, 4)).status.ok());
  EXPECT_LE(engine.pool().tenants()[0].active + engine.pool().tenants()[0].cached, 6u);
}

TEST(EngineShares, BorrowersGiveWayWhateverTheirAge) {
  TestEngineOptions options;
  options.pages = 12;
  TestEngine engine(options);
  engine.pool().SetBudgets({{Budget(engine, kU, 2, 12), Budget(engine, kT, 10, 12)}, {}});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(engine.Submit(SpecOf(kU, id, 60, 200)).ok());
  ASSERT_TRUE(engine.Submit(SpecOf(kT, 4, 60, 200)).ok());
  engine.Drain();
  EXPECT_EQ(engine.record(4).stats.preemptions, 0u);
  EXPECT_EQ(engine.record(4).tokens.size(), 200u);
  // What it leaves in the cache is its own, until the shares are divided anew.
  EXPECT_TRUE(engine->HasWork());
  engine.pool().SetBudgets({{Budget(engine, kU, 12, 12)}, {}});
  engine.Drain();
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(engine.record(id).tokens.size(), 200u) << id;
}

TEST(EngineShares, AShortPromptDoesNotWaitForAnotherTenantsLongOnes) {
  TestEngineOptions options;
  options.engine.step_tokens_max = 64;
  TestEngine engine(options);
  for (uint64_t id = 1; id <= 5; ++id) ASSERT_TRUE(engine.Submit(SpecOf(kU, id, 400, 1)).ok());
  for (int step = 0; step < 8; ++step) engine->Step();  // the second prompt has begun
  ASSERT_TRUE(engine.Submit(SpecOf(kT, 6, 60, 1)).ok());
  engine->Step();
  EXPECT_EQ(engine.record(6).tokens.size(), 1u);
  EXPECT_TRUE(engine.record(2).tokens.empty());
  engine.Drain();
  for (uint64_t id = 1; id <= 6; ++id) EXPECT_TRUE(engine.record(id).status.ok()) << id;
}

}  // namespace
}  // namespace sluice::engine
