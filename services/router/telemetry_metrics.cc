#include "services/router/telemetry_metrics.h"

namespace sluice::router {
namespace {

using telemetry::Registry;

class TelemetryMetrics final : public RouterMetrics {
 public:
  explicit TelemetryMetrics(Registry& registry)
      : registry_(registry),
        waiting_(registry.gauge(telemetry::kQueueRequests, {"waiting"})),
        running_(registry.gauge(telemetry::kQueueRequests, {"running"})),
        queue_seconds_(registry.histogram(telemetry::kQueueSeconds)),
        split_(registry.counter(telemetry::kRouteDecisions, {"split"})),
        local_(registry.counter(telemetry::kRouteDecisions, {"local"})),
        predicted_(registry.counter(telemetry::kPredictedCachedTokens)),
        lookup_failures_(registry.counter(telemetry::kLookupFailures)),
        ttft_(registry.histogram(telemetry::kTtft)),
        itl_(registry.histogram(telemetry::kItl)),
        migrations_(registry.counter(telemetry::kMigrations)),
        retries_(registry.counter(telemetry::kRetries)),
        recomputed_(registry.counter(telemetry::kRecomputedTokens)) {}

  void RequestRejected(const TenantId& tenant, absl::string_view reason) override {
    registry_.counter(telemetry::kRejections, {tenant.value(), reason}).Add();
  }
  void RequestQueued(size_t waiting, size_t running) override {
    waiting_.Set(static_cast<double>(waiting));
    running_.Set(static_cast<double>(running));
  }
  void QueueWait(absl::Duration wait) override { queue_seconds_.Observe(absl::ToDoubleSeconds(wait)); }
  void Placed(bool split, uint32_t predicted_cached_tokens) override {
    (split ? split_ : local_).Add();
    predicted_.Add(predicted_cached_tokens);
  }
  void LookupFailed() override { lookup_failures_.Add(); }
  void FirstToken(absl::Duration ttft) override { ttft_.Observe(absl::ToDoubleSeconds(ttft)); }
  void Token(absl::Duration gap) override { itl_.Observe(absl::ToDoubleSeconds(gap)); }
  void RequestDone(const TenantId& tenant, absl::string_view outcome, absl::Duration duration, const v1::Usage& usage,
                   uint32_t migrations, uint32_t retries) override {
    const absl::string_view name = tenant.value();
    registry_.counter(telemetry::kRequests, {name, outcome}).Add();
    registry_.histogram(telemetry::kRequestSeconds, {outcome}).Observe(absl::ToDoubleSeconds(duration));
    registry_.counter(telemetry::kInputTokens, {name}).Add(usage.prompt_tokens());
    registry_.counter(telemetry::kGeneratedTokens, {name}).Add(usage.completion_tokens());
    registry_.counter(telemetry::kCachedTokens, {name}).Add(usage.cached_tokens());
    recomputed_.Add(usage.recomputed_tokens());
    migrations_.Add(migrations);
    retries_.Add(retries);
  }
  void Degraded(absl::string_view dependency, bool degraded) override {
    registry_.gauge(telemetry::kDegraded, {dependency}).Set(degraded ? 1 : 0);
  }

 private:
  Registry& registry_;
  // What every token or request touches is looked up once.
  const telemetry::Gauge waiting_;
  const telemetry::Gauge running_;
  const telemetry::Histogram queue_seconds_;
  const telemetry::Counter split_;
  const telemetry::Counter local_;
  const telemetry::Counter predicted_;
  const telemetry::Counter lookup_failures_;
  const telemetry::Histogram ttft_;
  const telemetry::Histogram itl_;
  const telemetry::Counter migrations_;
  const telemetry::Counter retries_;
  const telemetry::Counter recomputed_;
};

}  // namespace

std::unique_ptr<RouterMetrics> MakeTelemetryMetrics(telemetry::Registry& registry) {
  return std::make_unique<TelemetryMetrics>(registry);
}

}  // namespace sluice::router
