// Are the protocol's guards needed, and do they suffice? A small world after the model of the
// protocol (one page on each side, requests one after the other), run by the real code over a
// network that delays, loses, repeats and tears, with both sides stopped now and then. With all
// guards no sequence ever lands with bytes that are not its own, and nobody writes into a page that
// was given away. Without any one of them, some seed shows damage. Digests are off: they would hide
// it.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "handoff/move_test_support.h"

namespace sluice::handoff {
namespace {

constexpr uint32_t kTokens = kTestPageTokens;  // one page
constexpr absl::Duration kLease = absl::Seconds(1);
constexpr absl::Duration kHorizon = absl::Seconds(14);

MoveOptions WorldOptions(uint64_t seed, const Guards& guards) {
  SeededRandom random(seed);
  MoveOptions options;
  options.seed = seed;
  options.pages = 1;
  options.layers = 2;
  options.digests = DigestMode::kOff;
  options.lease = kLease;
  options.drift_margin = 0;  // one clock
  options.served_max =
      0;  // the worst case of a bounded memory: a grant that comes twice is served twice
  options.guards = guards;
  options.link.delay_max = kLease * (0.7 * random.Unit());
  options.link.loss = 0.1 * random.Unit();
  options.link.duplicate = 0.4 * random.Unit();
  options.link.reorder = 0.4 * random.Unit();
  options.link.reorder_delay_max = kLease * (2 * random.Unit());
  options.link.fetch_late = 0.4 * random.Unit();
  options.link.fetch_late_max = kLease * (1.5 * random.Unit());
  return options;
}

class GuardWorld {
 public:
  GuardWorld(uint64_t seed, const Guards& guards)
      : test_(WorldOptions(seed, guards)),
        chaos_(test_.world.AddLoop("chaos")),
        random_(seed + 99) {}

  // Runs to the end of time. Returns what went wrong, or an empty string.
  std::string Run() {
    test_.d.loop.RunAt(test_.world.Now(), [this] { NextRequest(); });
    Soon(0.3, [this] { Chaos(); });
    test_.world.RunFor(kHorizon);
    over_ = true;
    test_.p.loop.Resume();
    test_.d.loop.Resume();
    test_.world.RunFor(kLease * 8);
    return damage_;
  }
  // Only with all guards: after a while nobody holds anything. Returns what is held, or an empty
  // string.
  std::string Leftover() {
    if (test_.p.PagesHeld() + test_.d.PagesHeld() == 0) return "";
    return absl::StrCat("holder: ", test_.p.PagesHeld(), " pages, ", test_.p.source->transfers(),
                        " transfers; taker: ", test_.d.pool->counts().active, " active, ",
                        test_.d.pool->counts().quarantined, " quarantined, ",
                        test_.d.taker->reservations(), " reservations, ",
                        test_.d.taker->fetches_outstanding(), " reads");
  }
  int landed() const { return landed_; }

 private:
  // A page of one pool that somebody else holds for a while; whoever writes into it does damage.
  struct Scribble {
    kv::PageLease page;
    uint64_t seed;
  };

  absl::Duration Within(double leases) { return kLease * (leases * random_.Unit()); }
  bool Chance(double probability) { return random_.Unit() < probability; }
  void Soon(double leases, std::function<void()> task) {
    chaos_.RunAt(test_.world.Now() + Within(leases), std::move(task));
  }
  void Damage(const std::string& what) {
    if (damage_.empty()) damage_ = what;
  }

  // The taker: one request after the other; some are given up.
  void NextRequest() {
    if (over_) return;
    test_.d.loop.RunAt(test_.world.Now() + Within(1.0), [this] { NextRequest(); });
    const uint64_t seed = ++requests_;
    ReserveCall call = test_.Call(test_.Prompt(kTokens, seed));
    call.max_tokens = 0;
    call.context.domain.reset();
    const absl::StatusOr<v1::Grant> grant = test_.d.taker->Reserve(call);
    if (!grant.ok()) return;
    const LeaseId lease = MoveTest::LeaseOf(*grant);
    test_.d.taker->Attach(lease, [this, seed](absl::StatusOr<LandedSequence> landed) {
      if (landed.ok()) OnLanded(seed, *std::move(landed));
    });
    // The router: grants are late, and some come twice.
    for (int copies = Chance(0.4) ? 2 : 1; copies > 0; --copies) {
      Soon(copies == 2 ? 2.5 : 0.7, [this, grant = *grant, seed] {
        test_.p.loop.Post([=, this] { Serve(grant, seed, 8); });
      });
    }
    if (Chance(0.3)) {
      Soon(1.5, [this, lease] {
        test_.d.loop.Post([this, lease] { test_.d.taker->Release(lease, "gave up"); });
      });
    }
  }

  // The holder: computes as soon as its page is free.
  void Serve(const v1::Grant& grant, uint64_t seed, int tries) {
    if (over_ || tries == 0) return;
    if (test_.p.pool->counts().free == 0) {
      test_.p.loop.RunAt(test_.world.Now() + Within(0.3),
                         [=, this] { Serve(grant, seed, tries - 1); });
      return;
    }
    const LeaseId lease = MoveTest::LeaseOf(grant);
    test_.p.ended.erase(lease);
    if (!test_.p.source->Open(grant, kTokens).ok()) return;
    test_.ComputeAndOffer(lease, seed, kTokens, 0, /*group=*/2);
  }

  void OnLanded(uint64_t seed, LandedSequence landed) {
    ++landed_;
    if (!test_.Holds(landed.pages[0], seed, 0))
      Damage("a sequence landed with bytes that are not its own");
    auto kept = std::make_shared<LandedSequence>(std::move(landed));
    Soon(0.5, [this, kept, seed] {
      if (!test_.Holds(kept->pages[0], seed, 0)) Damage("a landed page was written to");
    });
  }

  void Chaos() {
    if (over_) return;
    Soon(0.2, [this] { Chaos(); });
    for (MoveNode* node : {&test_.p, &test_.d}) {
      if (node->loop.paused() || !Chance(0.12)) continue;
      node->loop.Pause();
      Soon(2.5, [node] { node->loop.Resume(); });
    }
    for (MoveNode* node : {&test_.p, &test_.d}) {
      if (node->pool->counts().free == 0 || !Chance(0.4)) continue;
      const uint64_t seed = 1'000'000 + ++scribbles_;
      auto held = std::make_shared<Scribble>(
          Scribble{std::move((*node->pool->Allocate(1, TestId(seed), TenantId("x")))[0]), seed});
      test_.Write(held->page, seed, 0);
      Soon(0.4, [this, held] {
        if (!test_.Holds(held->page, held->seed, 0))
          Damage("somebody wrote into a page that was given to another");
      });
    }
  }

  MoveTest test_;
  testing::SimLoop& chaos_;
  SeededRandom random_;
  bool over_ = false;
  uint64_t requests_ = 0;
  uint64_t scribbles_ = 0;
  int landed_ = 0;
  std::string damage_;
};

TEST(Guards, SufficeTogether) {
  int landed = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    GuardWorld world(seed, Guards());
    const std::string damage = world.Run();
    ASSERT_EQ(damage, "") << "seed " << seed;
    ASSERT_EQ(world.Leftover(), "") << "seed " << seed;
    landed += world.landed();
  }
  // The world must not be so hostile that nothing ever happens in it.
  EXPECT_GT(landed, 300);
}

#ifdef SLUICE_FAULTS_ENABLED
class EachGuard : public ::testing::TestWithParam<Guard> {};

TEST_P(EachGuard, IsNeeded) {
  Guards guards;
  guards.SwitchOff(GetParam());
  constexpr uint64_t kSeeds = 20000;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    GuardWorld world(seed, guards);
    const std::string damage = world.Run();
    if (damage.empty()) continue;
    printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), damage.c_str());
    return;
  }
  FAIL() << "no damage in " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(All, EachGuard,
                         ::testing::Values(Guard::kCheckAfterFetch, Guard::kCountFromSending,
                                           Guard::kRenewalNeedsAck, Guard::kHoldWhileFetching,
                                           Guard::kPinUntilReleased, Guard::kMatchLease));

// Too rare for chance: a lease that is served twice, whose second serving acknowledges a renewal
// that was sent under the first, while the taker was stopped in the middle of a read.
bool LandsTornAfterResurrection(const Guards& guards) {
  MoveOptions options = WorldOptions(1, guards);
  options.link = {};
  MoveTest test(options);
  const transport::NodeId p = test.p.inner->node(), d = test.d.inner->node();
  const auto delay = [&](transport::NodeId from, transport::NodeId to, double leases) {
    transport::LinkPlan plan;
    plan.delay_min = plan.delay_max = kLease * leases;
    test.network.SetLink(from, to, plan);
  };
  const absl::Time start = test.world.Now();
  const auto run_to = [&](double leases) { test.world.RunUntil(start + kLease * leases); };
  ReserveCall call = test.Call(test.Prompt(kTokens, 7));
  call.max_tokens = 0;
  const v1::Grant grant = *test.Reserve(call);
  const LeaseId lease = MoveTest::LeaseOf(grant);
  std::optional<absl::StatusOr<LandedSequence>> result;
  test.Attach(lease, &result);
  delay(p, d, 0.1);
  SLUICE_CHECK(test.Open(grant, kTokens).ok());
  test.On(test.p, [&] { test.ComputeAndOffer(lease, 7, kTokens, 0); });
  // The offer is under way; the read that it starts gets its first half now and its second half
  // late.
  run_to(0.05);
  delay(p, d, 1.6);
  run_to(0.11);
  delay(p, d, 0.01);
  delay(d, p, 0.7);  // renewals arrive after the first serving is over
  run_to(0.9);
  test.d.loop.Pause();
  run_to(1.1);
  SLUICE_CHECK(test.p.source->transfers() == 0);
  test.p.tap->on_send = [](v1::MoveMessage& message, auto&) { return message.has_offer() ? 0 : 1; };
  SLUICE_CHECK(test.Open(grant, kTokens).ok());
  const std::vector<kv::PageLease> another = *test.p.pool->Allocate(1, TestId(8), TenantId("x"));
  test.Write(another[0], 8, 0);
  run_to(1.74);
  test.d.loop.Resume();
  run_to(1.8);
  return result.has_value() && result->ok() && !test.Holds((*result)->pages[0], 7, 0);
}

TEST(Guards, ALapsedLeaseIsNotRevived) {
  EXPECT_FALSE(LandsTornAfterResurrection(Guards()));
  Guards guards;
  guards.SwitchOff(Guard::kNoResurrection);
  EXPECT_TRUE(LandsTornAfterResurrection(guards));
}
#endif

}  // namespace
}  // namespace sluice::handoff
