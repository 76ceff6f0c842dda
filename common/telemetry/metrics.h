// Metrics: counters, gauges and histograms of the definitions in metric_names.h, and their text
// form for Prometheus.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "telemetry/metric_names.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace sluice::telemetry {

// Handles are small copyable values, valid as long as their registry. Thread-safe.
class Counter {
 public:
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double amount = 1) const;
  // For totals that are counted elsewhere: adds what is missing to `total`. Never goes back. One
  // caller at a time.
  void AdvanceTo(double total) const;

 private:
  prometheus::Counter* counter_;
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value) const;

 private:
  prometheus::Gauge* gauge_;
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value) const;

 private:
  prometheus::Histogram* histogram_;
};

// All metrics of a process. Thread-safe. Cost of a look-up by labels: one lock and one map; keep
// handles on hot paths.
class Registry {
 public:
  static constexpr size_t kTenantsMax = 1000;

  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The metric of a definition with these label values, one per label of the definition, made at
  // first use. CHECKs that the definition has that type and number of labels.
  using Labels = absl::Span<const absl::string_view>;
  Counter counter(const MetricDef& def, Labels values = {});
  Gauge gauge(const MetricDef& def, Labels values = {});
  Histogram histogram(const MetricDef& def, Labels values = {});

  // What the label "tenant" says for this tenant: its name, or "other" past the limit. For gauges,
  // whose values under "other" have to be added up before they are set.
  std::string TenantLabel(absl::string_view tenant);

  // `collect` runs before every Serialize, one at a time: for values that are read rather than
  // counted. Call before serving.
  void OnCollect(absl::AnyInvocable<void()> collect);

  // The Prometheus text format, version 0.0.4.
  std::string Serialize();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// Sets sluice_build_info and, at every collection, the process metrics (from /proc/self).
void RegisterProcessMetrics(Registry& registry, absl::string_view service, absl::string_view name,
                            absl::string_view version);

}  // namespace sluice::telemetry
