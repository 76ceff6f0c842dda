// Every change of state of a move and every message that may be lost is a named point. Each is
// reached by one of the moves below; failing once there harms that move at most: nobody is left
// with a page, and the next move works.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "handoff/move_scenario.h"
#include "handoff/states.h"

#ifdef SLUICE_FAULTS_ENABLED
namespace sluice::handoff {
namespace {

// Points that are not changes of state: messages that get lost, steps that fail.
constexpr const char* kStepPoints[] = {
    "handoff.grant",         "handoff.open",       "handoff.offer_sent",  "handoff.offer_received",
    "handoff.fetch_started", "handoff.fetch_done", "handoff.commit_sent", "handoff.commit_received",
    "handoff.landed",        "handoff.released"};

std::vector<std::string> AllPoints() {
  std::vector<std::string> points = MovePoints();
  points.insert(points.end(), std::begin(kStepPoints), std::end(kStepPoints));
  return points;
}

// As Begin and RunUntilReading of move_scenario.h, but any step may be refused.
void TryBegin(MoveTest& test, uint32_t tokens, Move* move) {
  const absl::StatusOr<v1::Grant> grant = test.Reserve(test.Call(test.Prompt(tokens, 7)));
  if (!grant.ok()) return;
  move->grant = *grant;
  move->lease = MoveTest::LeaseOf(*grant);
  if (test.Open(*grant, tokens).ok()) test.Attach(move->lease, &move->result);
}
void TryUntilReading(MoveTest& test, Move* move) {
  TryBegin(test, 20, move);
  test.world.RunFor(absl::Milliseconds(200));
  Compute(test, 20, *move);
  test.world.RunFor(absl::Milliseconds(110));
}

struct Scenario {
  const char* name;
  MoveOptions options;
  std::function<void(MoveTest&, Move*)> run;
};

std::vector<Scenario> QuietScenarios() {
  return {
      {"a whole move",
       {},
       [](MoveTest& test, Move* move) {
         TryBegin(test, 20, move);
         Compute(test, 20, *move);
       }},
      {"nothing has to be moved",
       {},
       [](MoveTest& test, Move* move) {
         HoldBlocks(test, test.Prompt(32, 7), 2, 7);
         TryBegin(test, 32, move);
         Compute(test, 32, *move);
       }},
      {"nobody opens it",
       {},
       [](MoveTest& test, Move* move) {
         move->grant = test.Reserve(test.Call(test.Prompt(20, 7))).value_or(v1::Grant());
       }},
      {"nobody asks for what has landed",
       {},
       [](MoveTest& test, Move* move) {
         const auto grant = test.Reserve(test.Call(test.Prompt(20, 7)));
         if (!grant.ok()) return;
         move->lease = MoveTest::LeaseOf(*grant);
         if (test.Open(*grant, 20).ok()) Compute(test, 20, *move);
       }},
  };
}

// Half the layers of one page are offered.
void OfferHalfAPage(MoveTest& test, LeaseId lease) {
  std::vector<engine::FinalPage> finals;
  finals.push_back({0, std::move((*test.p.pool->Allocate(1, TestId(7), TenantId("t")))[0])});
  test.p.source->Offer(lease, std::move(finals), 0, 2);
}

std::vector<Scenario> BrokenScenarios() {
  MoveOptions failing_reads;
  failing_reads.link.fetch_error = 1;
  return {
      {"withdrawn before anything is offered",
       {},
       [](MoveTest& test, Move* move) {
         TryBegin(test, 20, move);
         test.On(test.p, [&] { test.p.source->Withdraw(move->lease, "test"); });
       }},
      {"withdrawn while it is read", SlowLink(),
       [](MoveTest& test, Move* move) {
         TryUntilReading(test, move);
         test.On(test.p, [&] { test.p.source->Withdraw(move->lease, "test"); });
       }},
      {"withdrawn between offer and commit",
       {},
       [](MoveTest& test, Move* move) {
         TryBegin(test, 20, move);
         test.On(test.p, [&] {
           OfferHalfAPage(test, move->lease);
           test.p.source->Withdraw(move->lease, "test");
         });
       }},
      {"given up before the commit",
       {},
       [](MoveTest& test, Move* move) {
         TryBegin(test, 20, move);
         test.On(test.p, [&] { OfferHalfAPage(test, move->lease); });
         test.world.RunFor(absl::Milliseconds(10));
         test.On(test.d, [&] { test.d.taker->Release(move->lease, "test"); });
       }},
      {"the connection breaks while it is read", SlowLink(),
       [](MoveTest& test, Move* move) {
         TryUntilReading(test, move);
         test.network.Disconnect(test.p.inner->node(), test.d.inner->node());
       }},
      {"the connection breaks before the release is acknowledged", SlowLink(),
       [](MoveTest& test, Move* move) {
         TryUntilReading(test, move);
         test.On(test.d, [&] { test.d.taker->Release(move->lease, "test"); });
         test.network.Disconnect(test.p.inner->node(), test.d.inner->node());
       }},
      {"reads fail", failing_reads,
       [](MoveTest& test, Move* move) {
         TryBegin(test, 20, move);
         Compute(test, 20, *move);
       }},
  };
}

class FaultPoints : public ::testing::TestWithParam<std::string> {};

TEST_P(FaultPoints, IsReachedAndFailsOneMoveAtMost) {
  uint64_t hits = 0;
  std::vector<Scenario> scenarios = QuietScenarios();
  for (Scenario& scenario : BrokenScenarios()) scenarios.push_back(std::move(scenario));
  for (const Scenario& scenario : scenarios) {
    SCOPED_TRACE(scenario.name);
    MoveTest test(scenario.options);
    for (MoveNode* node : {&test.p, &test.d}) {
      node->faults.Arm(GetParam(), [hit = false]() mutable {
        return std::exchange(hit, true) ? absl::OkStatus() : absl::InternalError("fault");
      });
    }
    Move move;
    scenario.run(test, &move);
    test.world.RunFor(absl::Minutes(2));
    hits += test.p.faults.HitCount(GetParam()) + test.d.faults.HitCount(GetParam());
    if (move.result.has_value() && move.result->ok()) ExpectContent(test, move);
    ExpectNothingHeld(test, &move);
    for (MoveNode* node : {&test.p, &test.d}) node->faults.Disarm(GetParam());
    if (scenario.options.link.fetch_error > 0) continue;
    Move next;
    RunMove(test, 20, &next, 8);
    test.world.RunFor(absl::Seconds(2));
    ExpectContent(test, next, 8);
    ExpectNothingHeld(test, &next);
  }
  EXPECT_GT(hits, 0u) << "none of the moves comes by here";
}

INSTANTIATE_TEST_SUITE_P(All, FaultPoints, ::testing::ValuesIn(AllPoints()), [](const auto& point) {
  std::string name = point.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace sluice::handoff
#endif
