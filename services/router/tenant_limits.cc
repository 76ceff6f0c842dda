#include "services/router/tenant_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rpc/error.h"

namespace sluice::router {
namespace {

constexpr double kMinute = 60;
constexpr int32_t kNormalPriority = 50;
// Sequences end when they end; a moment is as good a guess as any.
constexpr absl::Duration kSequenceRetry = absl::Seconds(1);

v1::RateLimit ToProto(const cluster::RateWindow& window) {
  v1::RateLimit limit;
  limit.set_limit(window.limit);
  limit.set_remaining(window.remaining);
  limit.set_reset_ms(static_cast<uint64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(window.reset, absl::Milliseconds(1)))));
  return limit;
}

}  // namespace

int32_t WorkerPriority(const v1::TenantLimits& limits, int32_t request_priority) {
  const auto tenant = static_cast<int32_t>(limits.priority()) - kNormalPriority;
  return tenant * (2 * kRequestPriorityMax + 1) +
         std::clamp(request_priority, -kRequestPriorityMax, kRequestPriorityMax);
}

cluster::TenantBudgets BudgetsOf(const v1::TenantLimits& limits) {
  cluster::TenantBudgets budgets;
  if (limits.has_requests_per_min()) {
    const auto per_min = static_cast<double>(limits.requests_per_min());
    budgets.requests = {per_min / kMinute, limits.has_request_burst()
                                               ? static_cast<double>(limits.request_burst())
                                               : per_min};
  }
  if (limits.has_tokens_per_min()) {
    const auto per_min = static_cast<double>(limits.tokens_per_min());
    budgets.tokens = {per_min / kMinute, limits.has_token_burst()
                                             ? static_cast<double>(limits.token_burst())
                                             : per_min};
  }
  if (limits.has_concurrency()) budgets.sequences_max = limits.concurrency();
  return budgets;
}

v1::RateLimits ToProto(const cluster::RateReport& report) {
  v1::RateLimits limits;
  if (report.requests) *limits.mutable_requests() = ToProto(*report.requests);
  if (report.tokens) *limits.mutable_tokens() = ToProto(*report.tokens);
  return limits;
}

absl::Status RateError(const cluster::TenantRates::Refused& refused, const v1::RateLimits& limits) {
  const absl::Duration wait =
      std::max(absl::Ceil(refused.retry_after, absl::Milliseconds(1)), absl::Milliseconds(1));
  const std::string later = absl::StrCat("try again in ", absl::FormatDuration(wait));
  rpc::ErrorOptions options{.retry_after = wait};
  std::string message;
  switch (refused.limit) {
    case cluster::RateLimit::kRequests:
      options.field = "requests_per_min";
      message = absl::StrCat("the tenant's request rate is used up: ", refused.allowed,
                             " may come at once; ", later);
      break;
    case cluster::RateLimit::kTokens:
      options.field = "tokens_per_min";
      message = absl::StrCat("the tenant's token rate is used up: the request may use ",
                             refused.asked, " tokens, ", limits.tokens().remaining(), " of ",
                             refused.allowed, " are left; ", later);
      break;
    case cluster::RateLimit::kSequences:
      options.field = "concurrency";
      options.retry_after = kSequenceRetry;
      message = absl::StrCat("the tenant's requests run at its limit of ", refused.allowed,
                             " at a time, and this one counts ", refused.asked,
                             "; try again when one has ended");
      break;
  }
  absl::Status status = rpc::MakeError(v1::RATE_LIMITED, message, options);
  v1::ErrorDetail detail = rpc::DetailOf(status);
  *detail.mutable_rate_limits() = limits;
  rpc::SetDetail(&status, detail);
  return status;
}

}  // namespace sluice::router
