#include "services/router/telemetry_metrics.h"

#include "rpc/error.h"

namespace sluice::router {
namespace {

using request::Phase;
using telemetry::Registry;

constexpr std::array<const char*, 3> kRoles = {"prefill", "decode", "both"};
constexpr std::array<const char*, kWorkerStandings.size()> kStandingNames = {
    "usable", "not_ready", "draining", "breaker_open"};
constexpr std::array<Phase, 4> kPhases = {Phase::kAdmitted, Phase::kPlaced, Phase::kReserved,
                                          Phase::kPrefilling};

enum class Outcome { kOk, kCancelled, kSlow, kInvalid, kRejected, kFailed };
constexpr std::array<const char*, 6> kOutcomeNames = {"ok",      "cancelled", "slow",
                                                      "invalid", "rejected",  "failed"};

const char* NameOf(Outcome outcome) { return kOutcomeNames[static_cast<size_t>(outcome)]; }

// Whose doing the end of a request was.
Outcome OutcomeOf(v1::ErrorReason reason) {
  switch (reason) {
    case v1::CLIENT_CANCELLED:
      return Outcome::kCancelled;
    case v1::SLOW_CONSUMER:
      return Outcome::kSlow;
    case v1::INVALID_FIELD:
    case v1::CONTEXT_LENGTH_EXCEEDED:
    case v1::MODEL_NOT_FOUND:
    case v1::INVALID_API_KEY:
    case v1::PERMISSION_DENIED:
    case v1::LIMIT_EXCEEDED:
      return Outcome::kInvalid;
    case v1::RATE_LIMITED:
    case v1::QUOTA_EXCEEDED:
    case v1::OVERLOADED:
    case v1::DRAINING:
    case v1::NO_READY_WORKERS:
      return Outcome::kRejected;
    default:
      return Outcome::kFailed;
  }
}

// Why a request was rejected.
constexpr std::array<const char*, 3> kCauseNames = {"rate", "quota", "capacity"};
const char* CauseOf(v1::ErrorReason reason) {
  return kCauseNames[reason == v1::RATE_LIMITED ? 0 : reason == v1::QUOTA_EXCEEDED ? 1 : 2];
}

v1::ErrorReason ReasonOf(const absl::Status& status) {
  const v1::ErrorReason reason = rpc::DetailOf(status).reason();
  return v1::ErrorReason_IsValid(reason) && reason != v1::ERROR_REASON_UNSPECIFIED ? reason
                                                                                   : v1::INTERNAL;
}

class TelemetryMetrics final : public RouterMetrics {
 public:
  TelemetryMetrics(Registry& registry, absl::Span<const TenantId> tenants)
      : registry_(registry),
        queue_seconds_(registry.histogram(telemetry::kQueueSeconds)),
        split_(registry.counter(telemetry::kRouteDecisions, {"split"})),
        local_(registry.counter(telemetry::kRouteDecisions, {"local"})),
        predicted_(registry.counter(telemetry::kPredictedCachedTokens)),
        lookup_failures_(registry.counter(telemetry::kLookupFailures)),
        ttft_(registry.histogram(telemetry::kTtft)),
        itl_(registry.histogram(telemetry::kItl)),
        resume_gap_(registry.histogram(telemetry::kResumeGap)),
        stream_pauses_(registry.counter(telemetry::kStreamPauses)),
        exposed_(registry.histogram(telemetry::kExposed)),
        recomputed_(registry.counter(telemetry::kRecomputedTokens)) {
    for (Phase phase : kPhases)
      registry.histogram(telemetry::kTtftPhase, {request::PhaseName(phase)});
    for (cluster::MoveCause cause : cluster::kMoveCauses) {
      registry.counter(telemetry::kMigrations, {cluster::MoveCauseName(cause)});
      registry.counter(telemetry::kRetries, {cluster::MoveCauseName(cause)});
    }
    for (int i = v1::ERROR_REASON_UNSPECIFIED + 1; i < v1::ErrorReason_ARRAYSIZE; ++i)
      CountReason(static_cast<v1::ErrorReason>(i), 0);
    for (const char* outcome : kOutcomeNames)
      registry.histogram(telemetry::kRequestSeconds, {outcome});
    for (const identity::Refusal refusal : identity::kRefusals)
      registry.counter(telemetry::kAuthFailures, {identity::RefusalName(refusal)});
    registry.counter(telemetry::kTenantsReloadFailures);
    registry.counter(telemetry::kUsageRecordsLost);
    TenantsRead(absl::OkStatus(), tenants);
    State({});
  }

  void Refused(identity::Refusal refusal, const absl::Status& status) override {
    CountReason(ReasonOf(status), 1);
    registry_.counter(telemetry::kAuthFailures, {identity::RefusalName(refusal)}).Add();
  }

  void TenantsRead(const absl::Status& status, absl::Span<const TenantId> tenants) override {
    if (!status.ok()) registry_.counter(telemetry::kTenantsReloadFailures).Add();
    registry_.gauge(telemetry::kDegraded, {"tenants_file"}).Set(status.ok() ? 0 : 1);
    for (const TenantId& tenant : tenants) Introduce(tenant);
  }

  void RequestEnded(const TenantId& tenant, const absl::Status& status,
                    absl::Duration duration) override {
    Outcome outcome = Outcome::kOk;
    if (!status.ok()) {
      outcome = OutcomeOf(ReasonOf(status));
      CountReason(ReasonOf(status), 1);
      if (outcome == Outcome::kRejected) {
        registry_.counter(telemetry::kTenantRejections, {tenant.value(), CauseOf(ReasonOf(status))})
            .Add();
      }
    }
    registry_.counter(telemetry::kRequests, {tenant.value(), NameOf(outcome)}).Add();
    registry_.histogram(telemetry::kRequestSeconds, {NameOf(outcome)})
        .Observe(absl::ToDoubleSeconds(duration));
  }

  void GenerationEnded(const TenantId& tenant, absl::Time arrived,
                       const GenerationReport& report) override {
    const absl::string_view name = tenant.value();
    registry_.counter(telemetry::kInputTokens, {name}).Add(report.usage.prompt_tokens());
    registry_.counter(telemetry::kGeneratedTokens, {name}).Add(report.usage.completion_tokens());
    registry_.counter(telemetry::kCachedTokens, {name}).Add(report.usage.cached_tokens());
    recomputed_.Add(report.usage.recomputed_tokens());
    stream_pauses_.Add(report.pauses);
    if (report.status.ok()) predicted_.Add(report.first_choice.predicted_cached_tokens);
    if (report.first_token != absl::InfiniteFuture()) ObserveFirstToken(arrived, report);
    for (const cluster::FlowMove& move : report.moves) {
      const auto& def = move.migration ? telemetry::kMigrations : telemetry::kRetries;
      registry_.counter(def, {cluster::MoveCauseName(move.cause)}).Add();
      if (move.gap) resume_gap_.Observe(absl::ToDoubleSeconds(*move.gap));
    }
  }

  void QueueWait(const TenantId& tenant, absl::Duration wait) override {
    queue_seconds_.Observe(absl::ToDoubleSeconds(wait));
    registry_.counter(telemetry::kTenantQueueSeconds, {tenant.value()})
        .Add(absl::ToDoubleSeconds(wait));
  }
  void Placed(bool split) override { (split ? split_ : local_).Add(); }
  void LookupFailed() override { lookup_failures_.Add(); }
  void Token(absl::Duration gap) override { itl_.Observe(absl::ToDoubleSeconds(gap)); }

  void State(const RouterState& state) override {
    registry_.gauge(telemetry::kQueueRequests, {"waiting"}).Set(static_cast<double>(state.waiting));
    registry_.gauge(telemetry::kQueueRequests, {"running"}).Set(static_cast<double>(state.running));
    registry_.gauge(telemetry::kDegraded, {"cache_manager"}).Set(state.manager_connected ? 0 : 1);
    for (size_t i = 0; i < kRoles.size(); ++i) {
      for (size_t j = 0; j < kStandingNames.size(); ++j) {
        registry_.gauge(telemetry::kRouterWorkers, {kRoles[i], kStandingNames[j]})
            .Set(state.workers[i][j]);
      }
    }
  }

 private:
  // From here on the tenant's counters are there, at 0.
  void Introduce(const TenantId& tenant) {
    const absl::string_view name = tenant.value();
    for (const char* outcome : kOutcomeNames)
      registry_.counter(telemetry::kRequests, {name, outcome});
    for (const auto* def : {&telemetry::kInputTokens, &telemetry::kGeneratedTokens,
                            &telemetry::kCachedTokens, &telemetry::kTenantQueueSeconds}) {
      registry_.counter(*def, {name});
    }
    for (const char* cause : kCauseNames)
      registry_.counter(telemetry::kTenantRejections, {name, cause});
  }

  // The phases of a request add up to its time to first token: the last one is what remains.
  void ObserveFirstToken(absl::Time arrived, const GenerationReport& report) {
    const absl::Duration ttft = report.first_token - arrived;
    ttft_.Observe(absl::ToDoubleSeconds(ttft));
    std::array<absl::Duration, kPhases.size()> spent = report.first_choice.until_first_token;
    spent[0] += report.admitted - arrived;
    spent[3] = ttft - spent[0] - spent[1] - spent[2];
    for (size_t i = 0; i < kPhases.size(); ++i) {
      registry_.histogram(telemetry::kTtftPhase, {request::PhaseName(kPhases[i])})
          .Observe(absl::ToDoubleSeconds(spent[i]));
    }
    if (report.first_choice.exposed)
      exposed_.Observe(absl::ToDoubleSeconds(*report.first_choice.exposed));
  }

  void CountReason(v1::ErrorReason reason, double count) {
    const Outcome outcome = OutcomeOf(reason);
    if (outcome == Outcome::kCancelled || outcome == Outcome::kSlow) return;
    const auto& def = outcome == Outcome::kFailed ? telemetry::kFailures : telemetry::kRejections;
    registry_.counter(def, {v1::ErrorReason_Name(reason)}).Add(count);
  }

  Registry& registry_;
  // What every token or request touches is looked up once.
  const telemetry::Histogram queue_seconds_;
  const telemetry::Counter split_;
  const telemetry::Counter local_;
  const telemetry::Counter predicted_;
  const telemetry::Counter lookup_failures_;
  const telemetry::Histogram ttft_;
  const telemetry::Histogram itl_;
  const telemetry::Histogram resume_gap_;
  const telemetry::Counter stream_pauses_;
  const telemetry::Histogram exposed_;
  const telemetry::Counter recomputed_;
};

}  // namespace

std::unique_ptr<RouterMetrics> MakeTelemetryMetrics(telemetry::Registry& registry,
                                                    absl::Span<const TenantId> tenants) {
  return std::make_unique<TelemetryMetrics>(registry, tenants);
}

}  // namespace sluice::router
