// The tenants of one version of the tenants file, found by what callers bring.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "sluice/v1/tenants.pb.h"

namespace sluice::identity {

struct Tenant {
  TenantId id;
  std::string sharing_group;  // empty: none
  bool trusted_proxy = false;
  v1::TenantLimits limits;
};
using TenantPtr = std::shared_ptr<const Tenant>;

// Immutable, so any thread may use it. All look-ups are O(1); null: nobody.
class TenantTable {
 public:
  // `file` is one of config::LoadTenants. Errors: INVALID_ARGUMENT when keys are hashed and
  // `pepper` is shorter than kSecretBytesMin.
  static absl::StatusOr<TenantTable> Create(const v1::TenantsFile& file, std::string pepper);

  // The one whose hash the key has. What is looked up is an HMAC under a secret, so the time of the
  // look-up tells a caller nothing about hashes; the hash found is compared in constant time.
  TenantPtr ByKey(absl::string_view key) const;
  // By the value of the tenant claim of a verified token. One that no tenant lists belongs to the
  // default class, if there is one: under its own name, unless that is a listed tenant's, which
  // then is not this caller's, or no name for a tenant.
  TenantPtr BySubject(absl::string_view subject) const;
  // By the alternative names of a verified certificate: the first that a tenant lists.
  TenantPtr ByCertificate(absl::Span<const std::string> names) const;
  // By id, as a trusted proxy names it; of the default class if it is not listed.
  TenantPtr ById(absl::string_view id) const;

  // In the order of the file.
  const std::vector<TenantPtr>& tenants() const { return tenants_; }

 private:
  TenantTable() = default;
  TenantPtr OfDefaultClass(absl::string_view name) const;

  std::string pepper_;
  std::vector<TenantPtr> tenants_;
  std::shared_ptr<const v1::TenantLimits> default_class_;  // null: none
  absl::flat_hash_map<std::string, TenantPtr> by_id_;
  absl::flat_hash_map<std::string, TenantPtr> by_hash_;
  absl::flat_hash_map<std::string, TenantPtr> by_subject_;
  absl::flat_hash_map<std::string, TenantPtr> by_certificate_;
};

}  // namespace sluice::identity
