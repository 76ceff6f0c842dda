#include "tests/sim/scenario.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"

namespace sluice::sim {
namespace {

using cluster::Role;

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(Mix64(seed + 0x51)) { s_.seed = seed; }

  Scenario Make() {
    s_.calm = Chance(0.12);
    MakeCluster();
    MakeNetwork();
    MakeRouter();
    MakeRequests(Range(6, 14));
    if (!s_.calm) MakeFaults(Range(2, 10));
    return std::move(s_);
  }

  uint64_t Range(uint64_t min, uint64_t max) { return min + random_.Below(max - min + 1); }
  double Unit() { return random_.Unit(); }
  bool Chance(double probability) { return random_.Unit() < probability; }
  absl::Duration Time(absl::Duration min, absl::Duration max) {
    return min + (max - min) * random_.Unit();
  }
  Scenario& scenario() { return s_; }

  void MakeCluster() {
    const bool all_both = Chance(0.1);
    const uint64_t prefill = Range(1, 3);
    const uint64_t decode = Range(1, 3);
    for (uint64_t i = 0; i < prefill + decode; ++i) {
      s_.roles.push_back(all_both || Chance(0.15) ? Role::kBoth
                         : i < prefill            ? Role::kPrefill
                                                  : Role::kDecode);
    }
    ProcessOptions& p = s_.process;
    p.model.layout.page_tokens = Chance(0.5) ? 16 : 32;
    p.model.eos_one_in = Chance(0.5) ? 64 : 0;
    p.pages = Chance(0.7) ? Range(9, 24) : Range(25, 60);
    p.step_cost = Time(absl::Milliseconds(1), absl::Milliseconds(8));
    p.token_cost = Time(absl::Microseconds(20), absl::Milliseconds(1));
    p.worker.engine.step_tokens_max = static_cast<uint32_t>(Range(12, 64));
    p.worker.engine.batch_max = static_cast<uint32_t>(Range(2, 8));
    p.worker.engine.waiting_max = static_cast<uint32_t>(Range(2, 16));
    p.worker.engine.layer_group = static_cast<uint32_t>(Range(1, 2));
    p.worker.engine.may_recompute_prompts = Chance(0.8);
    p.worker.digests = Chance(0.5)   ? handoff::DigestMode::kFull
                       : Chance(0.5) ? handoff::DigestMode::kSampled
                                     : handoff::DigestMode::kOff;
    p.worker.lease = Time(absl::Milliseconds(300), absl::Seconds(2));
    p.worker.credits_max = static_cast<uint32_t>(Range(1, 5));
    p.worker.credit_lease = Time(absl::Milliseconds(100), absl::Seconds(2));
    if (!s_.calm && Chance(0.2)) p.point_failure = 0.03 * random_.Unit();
    p.worker.transfers_max = Range(4, 32);
    p.worker.calls_max = Range(8, 64);
  }

  // Rough networks are slow against a lease, so that leases lapse in mid-transfer.
  void MakeNetwork() {
    const double rough = s_.calm || Chance(0.25) ? 0 : random_.Unit();
    transport::LinkPlan& link = s_.link;
    link.delay_max =
        absl::Milliseconds(2) + s_.process.worker.lease * (0.6 * rough * random_.Unit());
    link.loss = 0.15 * rough * random_.Unit();
    link.duplicate = 0.2 * rough * random_.Unit();
    link.reorder = 0.3 * rough * random_.Unit();
    link.reorder_delay_max = s_.process.worker.lease * (2 * random_.Unit());
    link.fetch_error = 0.03 * rough * random_.Unit();
    link.fetch_late = 0.2 * rough * random_.Unit();
    link.fetch_late_max = s_.process.worker.lease * (2 * random_.Unit());
    link.detect_max = Time(absl::ZeroDuration(), absl::Milliseconds(500));
    link.down_lost = 0.2 * rough * random_.Unit();
    s_.rpc.delay_max = Time(absl::Milliseconds(2), absl::Milliseconds(2 + 60 * rough));
    s_.rpc.reset = 0.004 * rough * random_.Unit();
    s_.rpc.keepalive = Time(absl::Milliseconds(500), absl::Seconds(4));
    s_.rpc.detect_max = Time(absl::Milliseconds(1), absl::Milliseconds(200));
    s_.rpc.death_lost = rough > 0 ? 0.2 : 0;
  }

  void MakeRouter() {
    RouterOptions& r = s_.router;
    r.queue.running_max = Range(2, 16);
    r.placement.split = Chance(0.4) ? cluster::SplitMode::kAlways : cluster::SplitMode::kAuto;
    // A cluster without a pair of roles cannot split.
    const auto can = [&](Role role) {
      return std::count_if(s_.roles.begin(), s_.roles.end(),
                           [&](Role r2) { return r2 == role || r2 == Role::kBoth; });
    };
    if (can(Role::kPrefill) == 0 || can(Role::kDecode) == 0)
      s_.roles[0] = s_.roles[1] = Role::kBoth;
    r.placement.local_tokens_max = static_cast<uint32_t>(Range(0, 40));
    r.retry.attempts_max = static_cast<uint32_t>(Range(2, 6));
    r.retry.migrations_max = static_cast<uint32_t>(Range(2, 6));
    r.retry.budget_burst = static_cast<double>(Range(5, 60));
    r.retry.budget_per_s = 0.5;  // or no budget would ever be used up
    r.breaker.open_min = absl::Seconds(1);
    r.breaker.open_max = absl::Seconds(8);
    if (!s_.calm && Chance(0.2)) r.repeats = {0.3, s_.rpc.delay_max, s_.process.worker.lease * 2};
    r.silence_max = Time(absl::Seconds(1), absl::Seconds(4));
  }

  void MakeRequests(uint64_t count) {
    const uint32_t page = s_.process.model.layout.page_tokens;
    // Two to three requests of the longest kind fill a pool.
    const uint64_t tokens_max = std::min<uint64_t>(s_.process.pages * page * 2 / 5, 320);
    std::vector<std::vector<request::TokenId>> prefixes(Range(1, 3));
    for (auto& prefix : prefixes)
      prefix = Tokens(Range(page / 2, std::max<uint64_t>(page, tokens_max * 2 / 3)));
    for (uint64_t i = 0; i < count; ++i) {
      SimRequest r;
      r.arrival = Time(absl::ZeroDuration(), s_.faults_end * 0.8);
      if (Chance(0.7)) r.prompt = prefixes[random_.Below(prefixes.size())];
      const auto rest = Tokens(Range(1, tokens_max - r.prompt.size() - 8));
      if (r.prompt.empty() || Chance(0.9))
        r.prompt.insert(r.prompt.end(), rest.begin(), rest.end());
      r.sampling.max_tokens =
          static_cast<uint32_t>(Range(1, std::min<uint64_t>(60, tokens_max - r.prompt.size())));
      MakeSampling(&r.sampling);
      r.tenant = std::string(1, Chance(0.8) ? 't' : 'u');
      r.reuse = Chance(0.7);
      r.priority = static_cast<int32_t>(random_.Below(3)) - 1;
      r.deadline = Chance(0.15) ? Time(absl::Milliseconds(100), absl::Seconds(3))
                                : Time(absl::Seconds(15), absl::Seconds(40));
      if (Chance(0.2)) r.leaves = Time(absl::ZeroDuration(), absl::Seconds(2));
      r.leaves_content = Chance(0.3);
      s_.requests.push_back(std::move(r));
    }
    std::stable_sort(
        s_.requests.begin(), s_.requests.end(),
        [](const SimRequest& a, const SimRequest& b) { return a.arrival < b.arrival; });
  }

  void MakeSampling(request::SamplingParams* sampling) {
    sampling->temperature = Chance(0.4) ? 0.0f : 0.8f;
    sampling->seed = random_.Next64();
    if (Chance(0.3)) sampling->top_p = 0.9f;
    if (Chance(0.3)) sampling->top_k = 5;
    if (Chance(0.2)) sampling->repetition_penalty = 1.2f;
    if (Chance(0.2)) sampling->frequency_penalty = 0.5f;
    if (Chance(0.2)) sampling->stop_token_ids = {static_cast<request::TokenId>('z')};
    if (Chance(0.2)) sampling->min_tokens = std::min(sampling->max_tokens, 5u);
    sampling->ignore_eos = Chance(0.3);
  }

  // The same fault now and then.
  void MakeFaultsOf(Fault::Kind kind, uint64_t count, size_t slot, absl::Duration min,
                    absl::Duration max) {
    for (uint64_t i = 0; i < count; ++i) {
      Fault f;
      f.kind = kind;
      f.at = s_.faults_end * (static_cast<double>(i) / static_cast<double>(count));
      f.duration = Time(min, max);
      f.a = slot;
      f.b = 1 - slot;
      s_.faults.push_back(f);
    }
  }

  void MakeFaults(uint64_t count) {
    using Kind = Fault::Kind;
    static constexpr Kind kKinds[] = {Kind::kPauseProcess, Kind::kPauseProcess, Kind::kPauseEngine,
                                      Kind::kPauseMove,    Kind::kPauseRouter,  Kind::kCrash,
                                      Kind::kCrash,        Kind::kCutPages,     Kind::kClogPages,
                                      Kind::kDisconnect,   Kind::kCutCalls,     Kind::kSlow};
    for (uint64_t i = 0; i < count; ++i) {
      Fault f;
      f.kind = kKinds[random_.Below(std::size(kKinds))];
      f.at = Time(absl::ZeroDuration(), s_.faults_end * 0.9);
      // Short against a lease, or several leases long.
      f.duration =
          s_.process.worker.lease * (Chance(0.5) ? 1.2 * random_.Unit() : 1 + 3 * random_.Unit());
      f.a = random_.Below(s_.roles.size());
      f.b = (f.a + 1 + random_.Below(s_.roles.size() - 1)) % s_.roles.size();
      f.both = Chance(0.4);
      f.forward = Chance(0.5);
      if (f.kind == Kind::kPauseRouter)
        s_.router_pause_max = std::max(s_.router_pause_max, f.duration);
      s_.faults.push_back(f);
    }
    std::stable_sort(s_.faults.begin(), s_.faults.end(),
                     [](const Fault& a, const Fault& b) { return a.at < b.at; });
  }

 private:
  std::vector<request::TokenId> Tokens(uint64_t count) {
    std::vector<request::TokenId> tokens(count);
    for (request::TokenId& token : tokens)
      token = static_cast<request::TokenId>(random_.Below(256));
    return tokens;
  }

  SeededRandom random_;
  Scenario s_;
};

// A prefill and a decode worker with small pools and without digests; a router that does not give
// up.
void MakeGuardCluster(Maker& maker, uint64_t pages) {
  Scenario& s = maker.scenario();
  maker.MakeCluster();
  s.roles = {cluster::Role::kPrefill, cluster::Role::kDecode};
  handoff::WorkerOptions& worker = s.process.worker;
  s.process.point_failure = 0;
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
  s.router.placement.split = cluster::SplitMode::kAlways;
  s.router.repeats = {};
  s.router.retry.attempts_max = s.router.retry.migrations_max = 20;
  s.router.retry.budget_burst = 1000;
  maker.MakeRequests(16);
  for (SimRequest& r : s.requests) r.reuse = maker.Chance(0.2);
}

absl::string_view KindName(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::kPauseProcess:
      return "pause process";
    case Fault::Kind::kPauseEngine:
      return "pause engine loop";
    case Fault::Kind::kPauseMove:
      return "pause move loop";
    case Fault::Kind::kPauseRouter:
      return "pause router";
    case Fault::Kind::kCrash:
      return "crash";
    case Fault::Kind::kCutPages:
      return "cut pages";
    case Fault::Kind::kClogPages:
      return "clog pages";
    case Fault::Kind::kDisconnect:
      return "disconnect";
    case Fault::Kind::kCutCalls:
      return "cut calls";
    case Fault::Kind::kSlow:
      return "slow";
  }
  return "";
}

}  // namespace

Scenario MakeScenario(uint64_t seed) { return Maker(seed).Make(); }

Scenario MakeGuardScenario(handoff::Guard guard, uint64_t seed) {
  using handoff::Guard;
  Maker maker(seed);
  Scenario& s = maker.scenario();
  MakeGuardCluster(maker, guard == Guard::kNoResurrection ? 6 : maker.Range(8, 14));
  handoff::WorkerOptions& worker = s.process.worker;

  // Reads are slow against a lease.
  const auto leases = [&](double min, double max) {
    return worker.lease * (min + (max - min) * maker.Unit());
  };
  const kv::PageLayout layout = *kv::PageLayout::Make(s.process.model.layout);
  const auto slow_reads = [&](double min, double max) {
    s.link.bytes_per_second =
        layout.PieceRange(0, 2).bytes / absl::ToDoubleSeconds(leases(min, max));
  };
  slow_reads(0.3, 2);
  s.link.delay_max = leases(0, 0.2);
  s.link.duplicate = 0.3;
  s.link.reorder = 0.3;
  s.link.reorder_delay_max = leases(0, 2);
  // The router, which ends an attempt when one side fails, is too slow to cover up what happens.
  s.rpc.delay_max = leases(0.1, 0.8);
  switch (guard) {
    case Guard::kCheckAfterFetch:  // the taker stops in mid-read
      slow_reads(0.9, 1.5);
      s.link.delay_max = leases(0, 0.05);
      s.link.reorder = 0;
      maker.MakeFaultsOf(Fault::Kind::kPauseProcess, 8, /*slot=*/1, worker.lease * 1.1,
                         worker.lease * 2);
      break;
    case Guard::kCountFromSending:  // offers are late, renewals are lost
      s.link.delay_max = leases(0.4, 0.9);
      s.link.reorder = 0;
      s.link_to_prefill.emplace().loss = 0.95;
      break;
    case Guard::kRenewalNeedsAck:
      s.link_to_prefill.emplace().loss = 0.95;
      break;
    case Guard::kNoResurrection:
      // A lease that was forgotten is served again; a renewal that was sent to the first transfer
      // reaches the second, and its acknowledgement finds the taker asleep.
      worker.served_max = 0;
      worker.engine.step_tokens_max = 64;
      s.router.repeats = {0.8, worker.lease, worker.lease * 1.3};
      s.rpc.delay_max = worker.lease * 0.05;
      slow_reads(0.4, 0.8);
      s.link.duplicate = s.link.reorder = 0;
      s.link.loss = 0.4;
      s.link.delay_max = absl::Milliseconds(4);
      s.link_to_prefill.emplace();
      s.link_to_prefill->delay_min = worker.lease * 0.55;
      s.link_to_prefill->delay_max = worker.lease * 0.8;
      maker.MakeFaultsOf(Fault::Kind::kPauseProcess, 12, /*slot=*/1, worker.lease * 0.4,
                         worker.lease);
      maker.MakeFaultsOf(Fault::Kind::kCutCalls, 8, /*slot=*/0, worker.lease, worker.lease * 2);
      break;
    case Guard::kHoldWhileFetching:
    case Guard::kPinUntilReleased:
    case Guard::kMatchLease:
      break;
  }
  return std::move(s);
}

std::string Describe(const Fault& fault) {
  return absl::StrCat(KindName(fault.kind), " of ", fault.a, " (", fault.b,
                      fault.both ? ", both ways" : "", fault.forward ? ", forward" : "", ") for ",
                      absl::FormatDuration(fault.duration));
}

std::string Describe(const Scenario& s) {
  std::string roles;
  for (Role role : s.roles)
    roles += role == Role::kPrefill ? 'P' : role == Role::kDecode ? 'D' : 'B';
  return absl::StrFormat(
      "%s%s, %u pages of %u tokens, lease %s, %u requests, %u faults; pages travel up to %s, loss "
      "%.3f, duplicate %.3f, "
      "reorder %.3f; calls travel up to %s, reset %.4f",
      s.calm ? "calm, " : "", roles, s.process.pages, s.process.model.layout.page_tokens,
      absl::FormatDuration(s.process.worker.lease), s.requests.size(), s.faults.size(),
      absl::FormatDuration(s.link.delay_max), s.link.loss, s.link.duplicate, s.link.reorder,
      absl::FormatDuration(s.rpc.delay_max), s.rpc.reset);
}

}  // namespace sluice::sim
