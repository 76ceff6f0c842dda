#include "services/worker/worker_metrics.h"

#include <algorithm>
#include <array>
#include <map>

namespace sluice::services {
namespace {

using telemetry::Registry;

// The one tier there is: pages of the device, which is this host's memory for CPU kernels.
constexpr absl::string_view kTier = "device";
constexpr std::array<const char*, 4> kMethods = {"Prefill.Admit", "Prefill.Run", "Decode.Reserve",
                                                 "Decode.Generate"};
constexpr std::array<request::Phase, 3> kPhases = {
    request::Phase::kPrefilling, request::Phase::kTransferring, request::Phase::kDecoding};

void CollectEngine(Registry& registry, const WorkerMetrics::Sources& sources) {
  registry.OnCollect([&clock = sources.clock, &worker = sources.worker, &model = sources.model,
                      age = registry.gauge(telemetry::kHeartbeatAge),
                      running = registry.gauge(telemetry::kRunning),
                      waiting = registry.gauge(telemetry::kWaiting),
                      backlog = registry.gauge(telemetry::kPrefillBacklog),
                      context = registry.gauge(telemetry::kDecodeContext),
                      rate = registry.gauge(telemetry::kPrefillRate),
                      step = registry.gauge(telemetry::kDecodeStep),
                      weights = registry.counter(telemetry::kWeightBytesRead)] {
    const engine::EngineLoad load = worker.load().engine;
    age.Set(absl::ToDoubleSeconds(clock.Now() - worker.last_progress()));
    running.Set(load.running);
    waiting.Set(load.waiting);
    backlog.Set(static_cast<double>(load.prefill_tokens));
    context.Set(static_cast<double>(load.decode_tokens));
    rate.Set(load.prefill_tokens_per_s);
    step.Set(load.decode_step_ms / 1e3);
    weights.AdvanceTo(static_cast<double>(model.weight_bytes_read()));
  });
}

void CollectPages(Registry& registry, const WorkerMetrics::Sources& sources) {
  const kv::PagePool& pool = sources.pool;
  registry.gauge(telemetry::kKvPageBytes).Set(pool.layout().page_bytes());
  registry.gauge(telemetry::kKvTokens)
      .Set(static_cast<double>(pool.size()) * pool.layout().page_tokens());
  registry.OnCollect([&pool, &index = sources.index,
                      free = registry.gauge(telemetry::kKvPages, {"free"}),
                      active = registry.gauge(telemetry::kKvPages, {"active"}),
                      cached = registry.gauge(telemetry::kKvPages, {"cached"}),
                      quarantined = registry.gauge(telemetry::kKvPages, {"quarantined"}),
                      blocks = registry.gauge(telemetry::kPrefixBlocks),
                      queries = registry.counter(telemetry::kPrefixQueries),
                      hits = registry.counter(telemetry::kPrefixHits),
                      other_tag = registry.counter(telemetry::kPrefixDamage, {"tag"}),
                      other_digest = registry.counter(telemetry::kPrefixDamage, {"digest"})] {
    const kv::PageCounts pages = pool.counts();
    free.Set(static_cast<double>(pages.free));
    active.Set(static_cast<double>(pages.active));
    cached.Set(static_cast<double>(pages.cached));
    quarantined.Set(static_cast<double>(pages.quarantined));
    const kv::PrefixIndex::Stats stats = index.stats();
    blocks.Set(static_cast<double>(stats.blocks));
    queries.AdvanceTo(static_cast<double>(stats.queries));
    hits.AdvanceTo(static_cast<double>(stats.hits));
    other_tag.AdvanceTo(static_cast<double>(stats.tag_failures));
    other_digest.AdvanceTo(static_cast<double>(stats.digest_failures));
  });
}

// Tenants are known from the moment they hold a page; from then on all their series are there.
class TenantCollector {
 public:
  TenantCollector(Registry& registry, const kv::PagePool& pool)
      : registry_(registry), pool_(pool), page_bytes_(pool.layout().page_bytes()) {}

  void operator()() {
    // Several tenants may share the label "other".
    for (auto& [label, held] : tenants_) held = {};
    for (const kv::TenantPages& tenant : pool_.tenants()) {
      const auto [found, is_new] =
          tenants_.try_emplace(registry_.TenantLabel(tenant.tenant.value()));
      if (is_new) Introduce(found->first);
      found->second.active += tenant.active;
      found->second.cached += tenant.cached;
      found->second.own += tenant.own;
      found->second.limit = std::min<uint64_t>(found->second.limit + tenant.limit, pool_.size());
    }
    for (const auto& [label, held] : tenants_) {
      Set(telemetry::kTenantKvBytes, {label, kTier, "active"}, held.active);
      Set(telemetry::kTenantKvBytes, {label, kTier, "cached"}, held.cached);
      Set(telemetry::kTenantKvOwnBytes, {label, kTier}, held.own);
      Set(telemetry::kTenantKvLimitBytes, {label, kTier}, held.limit);
    }
  }

 private:
  void Introduce(absl::string_view label) {
    for (kv::EvictionCause cause : kv::kEvictionCauses) {
      registry_.counter(telemetry::kKvEvictions, {label, kTier, kv::EvictionCauseName(cause)});
    }
  }
  void Set(const telemetry::MetricDef& def, Registry::Labels labels, uint64_t pages) {
    registry_.gauge(def, labels).Set(static_cast<double>(pages) * page_bytes_);
  }

  Registry& registry_;
  const kv::PagePool& pool_;
  const double page_bytes_;
  std::map<std::string, kv::TenantPages> tenants_;  // by label
};

void CollectTenants(Registry& registry, const WorkerMetrics::Sources& sources) {
  sources.index.OnEvicted([&registry](const TenantId& tenant, kv::EvictionCause cause) {
    registry.counter(telemetry::kKvEvictions, {tenant.value(), kTier, kv::EvictionCauseName(cause)})
        .Add();
  });
  registry.OnCollect(TenantCollector(registry, sources.pool));
}

// 0 for a moment that is not set.
double SecondsSince(uint64_t nanos, const Clock& clock) {
  if (nanos == 0) return 0;
  return absl::ToDoubleSeconds(clock.Now() - absl::FromUnixNanos(static_cast<int64_t>(nanos)));
}

void CollectMoves(Registry& registry, const WorkerMetrics::Sources& sources) {
  const std::string& transport = sources.transport.capabilities().name;
  registry.OnCollect(
      [&worker = sources.worker, &clock = sources.clock,
       quarantine_age = registry.gauge(telemetry::kQuarantineAge),
       pin_age = registry.gauge(telemetry::kPinAge),
       grants = registry.counter(telemetry::kGrantsRefused),
       quarantines = registry.counter(telemetry::kPeerQuarantines),
       refusals = registry.counter(telemetry::kPeerRefusals),
       invalid = registry.counter(telemetry::kInvalidMessages),
       sent = registry.counter(telemetry::kKvTransferBytes, {transport, "send"}),
       received = registry.counter(telemetry::kKvTransferBytes, {transport, "receive"}),
       pieces_sent = registry.counter(telemetry::kKvTransferPieces, {transport, "send"}),
       pieces_received = registry.counter(telemetry::kKvTransferPieces, {transport, "receive"}),
       completed = registry.counter(telemetry::kKvTransfers, {"completed"}),
       failed = registry.counter(telemetry::kKvTransfers, {"failed"}),
       stale = registry.counter(telemetry::kStaleMessages),
       duplicate = registry.counter(telemetry::kDuplicateMessages),
       digest = registry.counter(telemetry::kDigestFailures),
       expired = registry.counter(telemetry::kLeaseExpiries)] {
        const handoff::MoveCounters moves = worker.counters();
        sent.AdvanceTo(static_cast<double>(moves.bytes_sent));
        received.AdvanceTo(static_cast<double>(moves.bytes_received));
        pieces_sent.AdvanceTo(static_cast<double>(moves.pieces_sent));
        pieces_received.AdvanceTo(static_cast<double>(moves.pieces_received));
        completed.AdvanceTo(static_cast<double>(moves.transfers_completed));
        failed.AdvanceTo(static_cast<double>(moves.transfers_failed));
        stale.AdvanceTo(static_cast<double>(moves.stale_messages));
        duplicate.AdvanceTo(static_cast<double>(moves.duplicate_messages));
        invalid.AdvanceTo(static_cast<double>(moves.invalid_messages));
        digest.AdvanceTo(static_cast<double>(moves.digest_failures));
        expired.AdvanceTo(static_cast<double>(moves.lease_expiries));
        grants.AdvanceTo(static_cast<double>(moves.grants_refused));
        quarantines.AdvanceTo(static_cast<double>(moves.peer_quarantines));
        refusals.AdvanceTo(static_cast<double>(moves.peer_refusals));
        quarantine_age.Set(SecondsSince(moves.quarantined_since_ns, clock));
        pin_age.Set(SecondsSince(moves.pinned_since_ns, clock));
      });
}

void CollectRefusals(Registry& registry, const transport::Transport& transport) {
  for (const transport::Refusal reason : transport::kRefusals) {
    registry.OnCollect([&transport, reason,
                        refused = registry.counter(telemetry::kTransportRefusals,
                                                   {transport::RefusalName(reason)})] {
      refused.AdvanceTo(static_cast<double>(transport.refused(reason)));
    });
  }
}

}  // namespace

WorkerMetrics::WorkerMetrics(telemetry::Registry& registry)
    : registry_(registry),
      output_tokens_(registry.counter(telemetry::kOutputTokens)),
      computed_tokens_(registry.counter(telemetry::kPromptTokens, {"computed"})),
      cached_tokens_(registry.counter(telemetry::kPromptTokens, {"cached"})),
      recomputed_tokens_(registry.counter(telemetry::kRecomputedTokens)),
      preemptions_(registry.counter(telemetry::kPreemptions)),
      tag_failures_(registry.counter(telemetry::kTagFailures)),
      transfer_seconds_(registry.histogram(telemetry::kKvTransferSeconds)) {
  for (const char* method : kMethods) {
    for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
      registry.counter(telemetry::kWorkerCalls,
                       {method, absl::StatusCodeToString(static_cast<absl::StatusCode>(code))});
    }
  }
  for (request::Phase phase : kPhases)
    registry.histogram(telemetry::kPhaseSeconds, {request::PhaseName(phase)});
}

void WorkerMetrics::CallEnded(absl::string_view method, const absl::Status& status) {
  const std::string code = absl::StatusCodeToString(status.code());
  registry_.counter(telemetry::kWorkerCalls, {method, code}).Add();
}

void WorkerMetrics::SequenceEnded(const engine::SequenceStats& stats) {
  computed_tokens_.Add(stats.computed_tokens);
  cached_tokens_.Add(stats.cached_tokens);
  recomputed_tokens_.Add(stats.recomputed_tokens);
  preemptions_.Add(stats.preemptions);
  if (stats.tag_mismatch) tag_failures_.Add();
}

void WorkerMetrics::PhaseEnded(request::Phase phase, absl::Duration duration) {
  registry_.histogram(telemetry::kPhaseSeconds, {request::PhaseName(phase)})
      .Observe(absl::ToDoubleSeconds(duration));
}

void WorkerMetrics::Collect(const Sources& sources) {
  CollectEngine(registry_, sources);
  CollectPages(registry_, sources);
  CollectTenants(registry_, sources);
  CollectMoves(registry_, sources);
  CollectRefusals(registry_, sources.transport);
}

}  // namespace sluice::services
