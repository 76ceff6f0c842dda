// Worlds in which one rule is what matters.
#include <string>
#include <utility>

#include "kv/page_layout.h"
#include "tests/sim/scenario_maker.h"

namespace sluice::sim {
namespace {

// A prefill and a decode worker with small pools and without digests; a router that does not give
// up.
void MakeGuardCluster(ScenarioMaker& maker, uint64_t pages) {
  Scenario& s = maker.scenario();
  maker.MakeCluster();
  s.roles = {cluster::Role::kPrefill, cluster::Role::kDecode};
  handoff::WorkerOptions& worker = s.process.worker;
  s.process.point_failure = 0;
  s.process.transport = {};
  s.token_flavour = s.upgrade = 0;
  worker.digests = handoff::DigestMode::kOff;
  worker.drift_margin = 0;  // one clock
  worker.lease = absl::Milliseconds(400);
  worker.credits_max = 4;
  worker.engine.waiting_max = 16;
  worker.engine.layer_group = 2;
  worker.calls_max = 64;
  worker.transfers_max = 32;
  s.process.model.layout.page_tokens = 16;
  s.process.pages = pages;
  maker.MakeRouter();
  s.router.core.placement.split = cluster::SplitMode::kAlways;
  s.routers = 1;
  s.router.repeats = {};
  s.router.core.retry.attempts_max = s.router.core.retry.migrations_max = 20;
  s.router.core.retry.budget_burst = 1000;
  maker.MakeRequests(16);
  for (size_t i = 0; i < s.requests.size(); ++i) {
    s.requests[i].salt = maker.Chance(0.2) ? "" : std::to_string(i);
    s.requests[i].choices = 1;
  }
}

// A decode worker that falls silent in the middle of its streams and is heard again once they have
// gone on elsewhere.
void MakeLateTokens(ScenarioMaker& maker) {
  Scenario& s = maker.scenario();
  s.roles.push_back(cluster::Role::kDecode);
  s.rpc.late_after_cancel = 1;
  s.process.step_cost = absl::Milliseconds(50);  // streams last
  s.rpc.delay_max = absl::Milliseconds(20);
  s.rpc.keepalive = absl::Seconds(30);
  s.silence_max = absl::Milliseconds(1200);
  s.link = {};
  maker.MakeFaultsOf(Fault::Kind::kCutCalls, 3, /*slot=*/1, absl::Milliseconds(1700),
                     absl::Milliseconds(2400));
  for (Fault& fault : s.faults) fault.at += absl::Milliseconds(300);
}

absl::Duration Leases(ScenarioMaker& maker, double min, double max) {
  return maker.scenario().process.worker.lease * (min + (max - min) * maker.Unit());
}

// A read of a page takes so many leases.
void SlowReads(ScenarioMaker& maker, double min, double max) {
  Scenario& s = maker.scenario();
  const kv::PageLayout layout = *kv::PageLayout::Make(s.process.model.layout);
  s.link.bytes_per_second =
      layout.PieceRange(0, 2).bytes / absl::ToDoubleSeconds(Leases(maker, min, max));
}

// A lease that was forgotten is served again; a renewal that was sent to the first transfer reaches
// the second, and its acknowledgement finds the taker asleep.
void MakeForgetfulHolder(ScenarioMaker& maker) {
  Scenario& s = maker.scenario();
  handoff::WorkerOptions& worker = s.process.worker;
  worker.served_max = 0;
  worker.engine.step_tokens_max = 64;
  s.router.repeats = {1, worker.lease, worker.lease * 1.3};
  s.rpc.delay_max = worker.lease * 0.05;
  SlowReads(maker, 0.4, 0.8);
  s.link.duplicate = s.link.reorder = 0;
  s.link.loss = 0.4;
  s.link.delay_max = absl::Milliseconds(4);
  s.link_to_prefill.emplace();
  s.link_to_prefill->delay_min = worker.lease * 0.55;
  s.link_to_prefill->delay_max = worker.lease * 0.8;
  maker.MakeFaultsOf(Fault::Kind::kPauseProcess, 12, /*slot=*/1, worker.lease * 0.4, worker.lease);
  maker.MakeFaultsOf(Fault::Kind::kCutCalls, 8, /*slot=*/0, worker.lease, worker.lease * 2);
}

}  // namespace

Scenario MakeGuardScenario(handoff::Guard guard, uint64_t seed) {
  using handoff::Guard;
  ScenarioMaker maker(seed);
  Scenario& s = maker.scenario();
  MakeGuardCluster(maker, guard == Guard::kNoResurrection ? 6 : maker.Range(8, 14));
  handoff::WorkerOptions& worker = s.process.worker;

  // Reads are slow against a lease.
  SlowReads(maker, 0.3, 2);
  s.link.delay_max = Leases(maker, 0, 0.2);
  s.link.duplicate = 0.3;
  s.link.reorder = 0.3;
  s.link.reorder_delay_max = Leases(maker, 0, 2);
  // The router, which ends an attempt when one side fails, is too slow to cover up what happens.
  s.rpc.delay_max = Leases(maker, 0.1, 0.8);
  switch (guard) {
    case Guard::kCheckAfterFetch:  // the taker stops in mid-read
      SlowReads(maker, 0.9, 1.5);
      s.link.delay_max = Leases(maker, 0, 0.05);
      s.link.reorder = 0;
      maker.MakeFaultsOf(Fault::Kind::kPauseProcess, 8, /*slot=*/1, worker.lease * 1.1,
                         worker.lease * 2);
      break;
    case Guard::kCountFromSending:  // offers are late, renewals are lost
      s.link.delay_max = Leases(maker, 0.4, 0.9);
      s.link.reorder = 0;
      s.link_to_prefill.emplace().loss = 0.95;
      break;
    case Guard::kRenewalNeedsAck:
      s.link_to_prefill.emplace().loss = 0.95;
      break;
    case Guard::kNoResurrection:
      MakeForgetfulHolder(maker);
      break;
    case Guard::kDigests:
      worker.digests = handoff::DigestMode::kFull;
      s.process.transport.flip = 0.2;
      break;
    case Guard::kIncarnation:  // workers come back at once, as another build, before anybody knows
      s.upgrade = 2;
      s.rpc.detect_max = worker.lease;
      SlowReads(maker, 0.05, 0.2);
      maker.MakeFaultsOf(Fault::Kind::kCrash, 8, /*slot=*/0, absl::ZeroDuration(),
                         absl::Milliseconds(1));
      break;
    case Guard::kGeneration:
      SlowReads(maker, 0.05, 0.2);
      maker.MakeFaultsOf(Fault::Kind::kLoseAPage, 60, /*slot=*/1, absl::ZeroDuration(),
                         absl::ZeroDuration());
      break;
    case Guard::kAttemptAndPosition:
      MakeLateTokens(maker);
      SlowReads(maker, 0.02, 0.1);
      break;
    case Guard::kHoldWhileFetching:
    case Guard::kPinUntilReleased:
    case Guard::kMatchLease:
    case Guard::kCommitCounts:
      break;
  }
  return std::move(s);
}

}  // namespace sluice::sim
