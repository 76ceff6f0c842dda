#include "identity/authenticator.h"

#include <utility>

namespace sluice::identity {
namespace {

Verdict Refuse(Refusal refusal, absl::string_view why) {
  return {nullptr, refusal, std::string(why)};
}

Verdict ByToken(const Snapshot& snapshot, absl::string_view token, absl::Time wall_now) {
  const auto subject = VerifyJwt(token, *snapshot.jwt_keys, snapshot.jwt_rules, wall_now);
  if (!subject.ok()) return Refuse(Refusal::kToken, subject.status().message());
  TenantPtr tenant = snapshot.table.BySubject(*subject);
  if (tenant == nullptr)
    return Refuse(Refusal::kTenant, "the token is valid, but its subject is no tenant's");
  return {std::move(tenant), Refusal::kNone, ""};
}

// By what was brought, without regard to x-sluice-tenant.
Verdict Identify(const Snapshot& snapshot, const Credentials& credentials, absl::Time wall_now) {
  if (!credentials.bearer.empty()) {
    if (snapshot.jwt_keys.has_value() && LooksLikeJwt(credentials.bearer))
      return ByToken(snapshot, credentials.bearer, wall_now);
    TenantPtr tenant = snapshot.table.ByKey(credentials.bearer);
    if (tenant == nullptr) return Refuse(Refusal::kKey, "the key is no tenant's");
    return {std::move(tenant), Refusal::kNone, ""};
  }
  if (!credentials.certificate_names.empty()) {
    TenantPtr tenant = snapshot.table.ByCertificate(credentials.certificate_names);
    if (tenant == nullptr)
      return Refuse(Refusal::kCertificate, "no name of the client's certificate is a tenant's");
    return {std::move(tenant), Refusal::kNone, ""};
  }
  return Refuse(Refusal::kMissing, "no credentials");
}

}  // namespace

absl::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kMissing:
      return "missing";
    case Refusal::kKey:
      return "key";
    case Refusal::kToken:
      return "token";
    case Refusal::kCertificate:
      return "certificate";
    case Refusal::kTenant:
      return "tenant";
  }
  return "none";
}

Verdict Authenticate(const Snapshot& snapshot, const Credentials& credentials,
                     absl::Time wall_now) {
  Verdict verdict = Identify(snapshot, credentials, wall_now);
  if (verdict.tenant == nullptr || !verdict.tenant->trusted_proxy ||
      credentials.named_tenant.empty()) {
    return verdict;
  }
  TenantPtr named = snapshot.table.ById(credentials.named_tenant);
  if (named == nullptr)
    return Refuse(Refusal::kTenant, "a trusted proxy named a tenant that is none");
  return {std::move(named), Refusal::kNone, ""};
}

}  // namespace sluice::identity
