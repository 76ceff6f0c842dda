// What a client hears when a request has failed in the cluster: a typed error in plain words.
#pragma once

#include "absl/status/status.h"
#include "cluster/request_flow.h"

namespace sluice::router {

// `status` and `summary` as FlowEvents::OnDone gives them. The result says what was tried, what
// failed last and what to do. Statuses of calls between router and workers mean nothing to a
// client: of those only CANCELLED, DEADLINE_EXCEEDED, INVALID_ARGUMENT and RESOURCE_EXHAUSTED pass,
// everything else becomes UNAVAILABLE.
absl::Status ClientError(const absl::Status& status, const cluster::FlowSummary& summary,
                         const cluster::RetryOptions& retry);

}  // namespace sluice::router
