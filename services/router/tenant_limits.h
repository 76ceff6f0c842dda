// A tenant's limits as the router's parts take them, and back into messages for clients.
#pragma once

#include "absl/status/status.h"
#include "cluster/tenant_rates.h"
#include "sluice/v1/errors.pb.h"
#include "sluice/v1/tenants.pb.h"

namespace sluice::router {

// Of what clients ask for; beyond it, they get this.
inline constexpr int32_t kRequestPriorityMax = 100;

// Tenants first, then requests: no client raises itself over a tenant of higher priority.
int32_t WorkerPriority(const v1::TenantLimits& limits, int32_t request_priority);

cluster::TenantBudgets BudgetsOf(const v1::TenantLimits& limits);

v1::RateLimits ToProto(const cluster::RateReport& report);

// RATE_LIMITED: which limit, what was asked, when to come again, and `limits` as they stand.
absl::Status RateError(const cluster::TenantRates::Refused& refused, const v1::RateLimits& limits);

}  // namespace sluice::router
