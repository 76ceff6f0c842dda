// RouterMetrics over the metrics of telemetry/metric_names.h.
#pragma once

#include <memory>

#include "services/router/router_metrics.h"
#include "telemetry/metrics.h"

namespace sluice::router {

// `registry` must outlive the result. Thread-safe.
std::unique_ptr<RouterMetrics> MakeTelemetryMetrics(telemetry::Registry& registry);

}  // namespace sluice::router
