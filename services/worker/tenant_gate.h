// On whose word a worker takes a call to be a tenant's.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "rpc/claims.h"
#include "services/process/claim_key_file.h"
#include "telemetry/metrics.h"

namespace sluice::services {

// With claim keys, on a router's claim; without, under mTLS, on the caller's certificate, whose
// role the server has checked for the method; with neither nobody can be believed, and the only
// tenant is "default". Thread-safe.
class TenantGate {
 public:
  // `keys` may be null. `worker` is the name by which routers call this one. All must outlive it.
  TenantGate(std::string worker, const ClaimKeyFile* keys, bool mutual_tls, const Clock& clock,
             telemetry::Registry& metrics);

  // Errors: PERMISSION_DENIED with the reason and the setting to change. `method`:
  // "Prefill.Admit".
  template <typename Message>
  absl::Status Check(const Message& message, absl::string_view method) const {
    const std::string audience = AudienceOf(method);
    return Count(CheckClaim(rpc::FactsOf(message, audience), rpc::FromProto(message.claim())));
  }

 private:
  std::string AudienceOf(absl::string_view method) const;
  absl::Status CheckClaim(const identity::ClaimFacts& facts, const identity::Claim& claim) const;
  absl::Status Count(absl::Status status) const;

  const std::string worker_;
  const ClaimKeyFile* const keys_;
  const bool mutual_tls_;
  const Clock& clock_;
  const telemetry::Counter refused_;
  mutable identity::ClaimCheck check_;
};

}  // namespace sluice::services
