// What a claim vouches for in each call of a router to a worker.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "identity/claim.h"
#include "sluice/v1/prefill.pb.h"

namespace sluice::rpc {

// "decode-0/Decode.Reserve".
inline std::string ClaimAudience(absl::string_view worker, absl::string_view method) {
  return absl::StrCat(worker, "/", method);
}

// The facts of a call that carries a claim: those of its fields that it has. `audience`, worker and
// method, and `message` must outlive the result.
template <typename Message>
identity::ClaimFacts FactsOf(const Message& message, absl::string_view audience) {
  identity::ClaimFacts facts;
  facts.tenant = message.tenant();
  facts.request_id = message.request_id();
  facts.attempt = message.attempt();
  facts.audience = audience;
  if constexpr (requires { message.cache_domain(); }) facts.cache_domain = message.cache_domain();
  if constexpr (requires { message.priority(); }) {
    facts.priority = message.priority();
    facts.weight = message.tenant_weight();
  }
  return facts;
}

inline v1::TenantClaim ToProto(const identity::Claim& claim) {
  v1::TenantClaim message;
  message.set_nonce(claim.nonce);
  message.set_expires_ms(claim.expires_ms);
  message.set_mac(claim.mac);
  return message;
}

inline identity::Claim FromProto(const v1::TenantClaim& message) {
  return {message.nonce(), message.expires_ms(), message.mac()};
}

}  // namespace sluice::rpc
