// RouterMetrics over the metrics of telemetry/metric_names.h.
#pragma once

#include <memory>

#include "absl/types/span.h"
#include "base/ids.h"
#include "services/router/router_metrics.h"
#include "telemetry/metrics.h"

namespace sluice::router {

// `registry` must outlive the result. The counters of `tenants` are there from now on; those of
// others when they call first. Thread-safe.
std::unique_ptr<RouterMetrics> MakeTelemetryMetrics(telemetry::Registry& registry,
                                                    absl::Span<const TenantId> tenants);

}  // namespace sluice::router
