// Who a caller is: the one place where credentials become a tenant.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "identity/cache_secret.h"
#include "identity/jwt.h"
#include "identity/tenant_table.h"

namespace sluice::identity {

// What a caller brought.
struct Credentials {
  std::string bearer;                          // of "authorization: Bearer ..."
  std::vector<std::string> certificate_names;  // of a verified client certificate
  std::string named_tenant;                    // of x-sluice-tenant
};

// Why somebody was refused: for metrics and the operator's log. Clients are only told whether they
// brought anything, so that nobody can find out which keys, subjects or tenants there are.
enum class Refusal { kNone, kMissing, kKey, kToken, kCertificate, kTenant };
inline constexpr std::array<Refusal, 5> kRefusals = {
    Refusal::kMissing, Refusal::kKey, Refusal::kToken, Refusal::kCertificate, Refusal::kTenant};
// "missing", "key", "token", "certificate", "tenant".
absl::string_view RefusalName(Refusal refusal);

struct Verdict {
  TenantPtr tenant;  // null: refused
  Refusal refusal = Refusal::kNone;
  std::string why;  // for the operator; holds nothing of the credentials
};

// Everything that was read from one version of the tenants file and the files it names. Immutable,
// so any thread may use it.
struct Snapshot {
  TenantTable table;
  std::optional<JwtKeys> jwt_keys;  // absent: no tokens are taken
  JwtRules jwt_rules;
  PublicPrefixes public_prefixes;
};

// The first kind of credential that was brought decides, bearer before certificate: a wrong one is
// not made good by another. Cost: an HMAC for a key, a signature check for a token.
Verdict Authenticate(const Snapshot& snapshot, const Credentials& credentials, absl::Time wall_now);

}  // namespace sluice::identity
