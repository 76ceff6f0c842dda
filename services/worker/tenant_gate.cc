#include "services/worker/tenant_gate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/error.h"
#include "telemetry/metric_names.h"

namespace sluice::services {

TenantGate::TenantGate(std::string worker, const ClaimKeyFile* keys, bool mutual_tls,
                       const Clock& clock, telemetry::Registry& metrics)
    : worker_(std::move(worker)),
      keys_(keys),
      mutual_tls_(mutual_tls),
      clock_(clock),
      refused_(metrics.counter(telemetry::kRpcRefusals, {"claim"})) {}

std::string TenantGate::AudienceOf(absl::string_view method) const {
  return rpc::ClaimAudience(worker_, method);
}

absl::Status TenantGate::CheckClaim(const identity::ClaimFacts& facts,
                                    const identity::Claim& claim) const {
  if (keys_ != nullptr) return check_.Check(*keys_->keys(), facts, claim, clock_.WallNow());
  if (mutual_tls_ || facts.tenant.empty() || facts.tenant == "default") return absl::OkStatus();
  return absl::PermissionDeniedError(
      "this worker cannot know that its caller is a router, so it serves no tenant but "
      "\"default\"; set claim_key_file, the same on all routers and workers, or service.tls");
}

absl::Status TenantGate::Count(absl::Status status) const {
  if (status.ok()) return status;
  refused_.Add();
  return absl::IsPermissionDenied(status) ? rpc::MakeError(v1::PERMISSION_DENIED, status.message())
                                          : status;
}

}  // namespace sluice::services
