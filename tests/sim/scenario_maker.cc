#include "tests/sim/scenario_maker.h"

#include <algorithm>
#include <iterator>

namespace sluice::sim {

using cluster::Role;

void ScenarioMaker::MakeCluster() {
  const bool all_both = Chance(0.1);
  const uint64_t prefill = Range(1, 3);
  const uint64_t decode = Range(1, 3);
  for (uint64_t i = 0; i < prefill + decode; ++i) {
    s_.roles.push_back(all_both || Chance(0.15) ? Role::kBoth
                       : i < prefill            ? Role::kPrefill
                                                : Role::kDecode);
  }
  MakeWorker(&s_.process);
  if (Chance(0.3)) s_.token_flavour = 1;
  if (!s_.calm && Chance(0.15)) s_.upgrade = 2;
}

void ScenarioMaker::MakeWorker(ProcessOptions* process) {
  ProcessOptions& p = *process;
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
  p.transport.true_get = Chance(0.75);
  // What the network changes is noticed by full digests only.
  if (!s_.calm && p.worker.digests == handoff::DigestMode::kFull && Chance(0.4))
    p.transport.flip = 0.05 * random_.Unit();
  p.worker.transfers_max = Range(4, 32);
  p.worker.calls_max = Range(8, 64);
}

void ScenarioMaker::MakeNetwork() {
  const double rough = s_.calm || Chance(0.25) ? 0 : random_.Unit();
  transport::LinkPlan& link = s_.link;
  link.delay_max = absl::Milliseconds(2) + s_.process.worker.lease * (0.6 * rough * random_.Unit());
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
  s_.rpc.late_after_cancel = 0.5;
}

void ScenarioMaker::MakeRouter() {
  router::RouterOptions& r = s_.router.core;
  s_.routers = Range(1, 2);
  s_.router.lookup_slowness = Chance(0.2) ? 1.5 : 1;
  r.queue.running_max = Range(2, 16);
  r.placement.split = Chance(0.4) ? cluster::SplitMode::kAlways : cluster::SplitMode::kAuto;
  // A cluster without a pair of roles cannot split.
  const auto can = [&](Role role) {
    return std::count_if(s_.roles.begin(), s_.roles.end(),
                         [&](Role r2) { return r2 == role || r2 == Role::kBoth; });
  };
  if (can(Role::kPrefill) == 0 || can(Role::kDecode) == 0) s_.roles[0] = s_.roles[1] = Role::kBoth;
  r.placement.local_tokens_max = static_cast<uint32_t>(Range(0, 40));
  r.retry.attempts_max = static_cast<uint32_t>(Range(2, 6));
  r.retry.migrations_max = static_cast<uint32_t>(Range(2, 6));
  r.retry.budget_burst = static_cast<double>(Range(5, 60));
  r.retry.budget_per_s = 0.5;  // or no budget would ever be used up
  r.retry.queue_wait_max = s_.calm || Chance(0.8) ? absl::Seconds(60) : absl::Seconds(5);
  r.breaker.open_min = absl::Seconds(1);
  r.breaker.open_max = absl::Seconds(8);
  if (!s_.calm && Chance(0.2))
    s_.router.repeats = {0.3, s_.rpc.delay_max, s_.process.worker.lease * 2};
  s_.silence_max = Time(absl::Seconds(1), absl::Seconds(4));
}

void ScenarioMaker::MakeRequests(uint64_t count) {
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
    if (r.prompt.empty() || Chance(0.9)) r.prompt.insert(r.prompt.end(), rest.begin(), rest.end());
    r.sampling.max_tokens =
        static_cast<uint32_t>(Range(1, std::min<uint64_t>(60, tokens_max - r.prompt.size())));
    MakeSampling(&r.sampling);
    if (Chance(0.2)) r.choices = static_cast<uint32_t>(Range(2, 3));
    if (Chance(0.25)) MakeStops(&r);
    r.tenant = std::string(1, Chance(0.8) ? 't' : 'u');
    if (Chance(0.3)) r.salt = std::to_string(i);
    r.priority = static_cast<int32_t>(random_.Below(3)) - 1;
    r.deadline = Chance(0.15) ? Time(absl::Milliseconds(100), absl::Seconds(3))
                              : Time(absl::Seconds(15), absl::Seconds(40));
    if (Chance(0.2)) r.leaves = Time(absl::ZeroDuration(), absl::Seconds(2));
    s_.requests.push_back(std::move(r));
  }
  std::stable_sort(s_.requests.begin(), s_.requests.end(),
                   [](const SimRequest& a, const SimRequest& b) { return a.arrival < b.arrival; });
}

void ScenarioMaker::MakeSampling(request::SamplingParams* sampling) {
  sampling->temperature = Chance(0.4) ? 0.0f : 0.8f;
  sampling->seed = random_.Next64();
  if (Chance(0.3)) sampling->top_p = 0.9f;
  if (Chance(0.3)) sampling->top_k = 5;
  if (Chance(0.2)) sampling->repetition_penalty = 1.2f;
  if (Chance(0.2)) sampling->frequency_penalty = 0.5f;
  if (Chance(0.2)) sampling->stop_token_ids = {static_cast<request::TokenId>('z')};
  if (Chance(0.2)) sampling->min_tokens = std::min(sampling->max_tokens, 5u);
  sampling->ignore_eos = Chance(0.3);
  if (Chance(0.3)) sampling->logprobs = static_cast<int>(Range(0, 4));
  sampling->logits_hash = Chance(0.3);
}

void ScenarioMaker::MakeStops(SimRequest* request) {
  static constexpr const char* kStops[] = {"ee", "a ", "t", " o", ". ", "sth", "zz", "n"};
  for (uint64_t i = Range(1, 2); i > 0; --i)
    request->stops.emplace_back(kStops[random_.Below(std::size(kStops))]);
  request->include_stop = Chance(0.3);
}

void ScenarioMaker::MakeFaultsOf(Fault::Kind kind, uint64_t count, size_t slot, absl::Duration min,
                                 absl::Duration max) {
  for (uint64_t i = 0; i < count; ++i) {
    Fault f;
    f.kind = kind;
    f.at = s_.faults_end * (static_cast<double>(i) / static_cast<double>(count));
    f.duration = Time(min, max);
    f.a = slot;
    f.b = slot == 0 ? 1 : 0;
    s_.faults.push_back(f);
  }
}

void ScenarioMaker::MakeFaults(uint64_t count) {
  using Kind = Fault::Kind;
  static constexpr Kind kKinds[] = {Kind::kPauseProcess, Kind::kPauseProcess, Kind::kPauseEngine,
                                    Kind::kPauseMove,    Kind::kPauseRouter,  Kind::kCrash,
                                    Kind::kCrash,        Kind::kCutPages,     Kind::kClogPages,
                                    Kind::kDisconnect,   Kind::kCutCalls,     Kind::kSlow,
                                    Kind::kCrashRouter,  Kind::kLoseAPage};
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
    // Tags are what protects a lost page: a holder's page may be read before it looks.
    if (f.kind == Kind::kLoseAPage && s_.roles[f.a] != Role::kDecode) f.kind = Kind::kSlow;
    if (f.kind == Kind::kPauseRouter)
      s_.router_pause_max = std::max(s_.router_pause_max, f.duration);
    s_.faults.push_back(f);
  }
  std::stable_sort(s_.faults.begin(), s_.faults.end(),
                   [](const Fault& a, const Fault& b) { return a.at < b.at; });
}

void ScenarioMaker::MakeSwizzle() {
  const absl::Duration begin = Time(absl::ZeroDuration(), s_.faults_end / 2);
  const absl::Duration step = s_.process.worker.lease * (0.5 * random_.Unit());
  std::vector<size_t> links(2 * s_.roles.size());
  for (size_t i = 0; i < links.size(); ++i) links[i] = i;
  const std::vector<size_t> stops = Shuffled(links), heals = Shuffled(links);
  for (size_t i = 0; i < links.size(); ++i) {
    const size_t healed =
        static_cast<size_t>(std::find(heals.begin(), heals.end(), stops[i]) - heals.begin());
    Fault f;
    f.kind = stops[i] % 2 == 0 ? Fault::Kind::kCutCalls
             : Chance(0.5)     ? Fault::Kind::kCutPages
                               : Fault::Kind::kClogPages;
    f.at = begin + step * static_cast<double>(i);
    f.duration = step * static_cast<double>(links.size() - i + healed);
    f.a = stops[i] / 2;
    f.b = (f.a + 1) % s_.roles.size();
    f.both = true;
    s_.faults.push_back(f);
  }
}

std::vector<size_t> ScenarioMaker::Shuffled(std::vector<size_t> items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random_.Below(i)]);
  return items;
}

std::vector<request::TokenId> ScenarioMaker::Tokens(uint64_t count) {
  std::vector<request::TokenId> tokens(count);
  for (request::TokenId& token : tokens) token = static_cast<request::TokenId>(random_.Below(256));
  return tokens;
}

}  // namespace sluice::sim
