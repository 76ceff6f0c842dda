#include "telemetry/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/check.h"
#include "base/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace sluice::telemetry {

void Counter::Add(double amount) const { counter_->Increment(amount); }
void Counter::AdvanceTo(double total) const {
  const double missing = total - counter_->Value();
  if (missing > 0) counter_->Increment(missing);
}
void Gauge::Set(double value) const { gauge_->Set(value); }
void Histogram::Observe(double value) const { histogram_->Observe(value); }

struct Registry::State {
  prometheus::Registry registry;
  Mutex mutex;
  absl::flat_hash_map<const MetricDef*, void*> families SLUICE_GUARDED_BY(mutex);
  absl::flat_hash_set<std::string> tenants SLUICE_GUARDED_BY(mutex);
  Mutex collect_mutex;  // before `mutex`
  std::vector<absl::AnyInvocable<void()>> collectors SLUICE_GUARDED_BY(collect_mutex);

  std::string FoldTenant(std::string tenant) SLUICE_REQUIRES(mutex) {
    if (tenants.contains(tenant)) return tenant;
    if (tenants.size() >= kTenantsMax) return "other";
    tenants.insert(tenant);
    return tenant;
  }

  std::map<std::string, std::string> LabelsOf(const MetricDef& def, Labels values)
      SLUICE_REQUIRES(mutex) {
    std::map<std::string, std::string> labels;
    size_t count = 0;
    while (count < kLabelsMax && def.labels[count] != nullptr) ++count;
    SLUICE_CHECK(values.size() == count)
        << def.name << " has " << count << " labels, not " << values.size();
    for (size_t i = 0; i < count; ++i) {
      std::string value(values[i]);
      if (absl::string_view(def.labels[i]) == "tenant") value = FoldTenant(std::move(value));
      labels.emplace(def.labels[i], std::move(value));
    }
    return labels;
  }

  template <typename Metric, typename Builder, typename... Args>
  Metric* Make(const MetricDef& def, Builder build, Labels values, const Args&... arguments) {
    MutexLock lock(mutex);
    void*& slot = families[&def];
    if (slot == nullptr) slot = &build().Name(def.name).Help(def.help).Register(registry);
    return &static_cast<prometheus::Family<Metric>*>(slot)->Add(LabelsOf(def, values),
                                                                arguments...);
  }
};

Registry::Registry() : state_(std::make_unique<State>()) {}
Registry::~Registry() = default;

Counter Registry::counter(const MetricDef& def, Labels values) {
  SLUICE_CHECK(def.type == MetricType::kCounter) << def.name << " is no counter";
  return Counter(state_->Make<prometheus::Counter>(def, prometheus::BuildCounter, values));
}

Gauge Registry::gauge(const MetricDef& def, Labels values) {
  SLUICE_CHECK(def.type == MetricType::kGauge) << def.name << " is no gauge";
  return Gauge(state_->Make<prometheus::Gauge>(def, prometheus::BuildGauge, values));
}

Histogram Registry::histogram(const MetricDef& def, Labels values) {
  SLUICE_CHECK(def.type == MetricType::kHistogram) << def.name << " is no histogram";
  const absl::Span<const double> bounds = BucketBounds(def.buckets);
  return Histogram(state_->Make<prometheus::Histogram>(
      def, prometheus::BuildHistogram, values, std::vector<double>(bounds.begin(), bounds.end())));
}

std::string Registry::TenantLabel(absl::string_view tenant) {
  MutexLock lock(state_->mutex);
  return state_->FoldTenant(std::string(tenant));
}

void Registry::OnCollect(absl::AnyInvocable<void()> collect) {
  MutexLock lock(state_->collect_mutex);
  state_->collectors.push_back(std::move(collect));
}

std::string Registry::Serialize() {
  MutexLock lock(state_->collect_mutex);
  for (auto& collect : state_->collectors) collect();
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

namespace {

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  double total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFds() {
  std::error_code error;
  const std::filesystem::directory_iterator fds("/proc/self/fd", error);
  return error ? 0 : static_cast<double>(std::distance(begin(fds), end(fds)));
}

}  // namespace

void RegisterProcessMetrics(Registry& registry, absl::string_view service, absl::string_view name,
                            absl::string_view version) {
  registry.gauge(kBuildInfo, {service, name, version}).Set(1);
  registry.OnCollect([cpu = registry.counter(kProcessCpu), memory = registry.gauge(kProcessMemory),
                      fds = registry.gauge(kProcessFds)] {
    cpu.AdvanceTo(CpuSeconds());
    memory.Set(ResidentBytes());
    fds.Set(OpenFds());
  });
}

}  // namespace sluice::telemetry
