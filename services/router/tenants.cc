#include "services/router/tenants.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "config/tenants.h"
#include "identity/api_key.h"

namespace sluice::router {
namespace {

constexpr size_t kSecretFileBytesMax = 4096;

identity::TenantPtr DefaultTenant() {
  static const identity::TenantPtr kTenant = [] {
    identity::Tenant tenant;
    tenant.id = TenantId("default");
    tenant.limits.set_weight(1);
    tenant.limits.set_priority(50);
    return std::make_shared<const identity::Tenant>(std::move(tenant));
  }();
  return kTenant;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Tenants>> Tenants::Load(const TenantsOptions& options,
                                                       const Clock& clock) {
  std::shared_ptr<Tenants> tenants(new Tenants(options, clock));
  if (options.cache_secret_file.empty()) {
    SecureRandom random;
    tenants->random_ = identity::MakeSecret(random);
  }
  bool read = false;
  SLUICE_RETURN_IF_ERROR(tenants->Read(&read));
  return tenants;
}

std::shared_ptr<const Tenants> Tenants::Fixed(const v1::TenantsFile& file,
                                              identity::CacheSecret secret, const Clock& clock) {
  std::shared_ptr<Tenants> tenants(new Tenants({"", "", false}, clock));
  identity::Snapshot snapshot{
      *identity::TenantTable::Create(file, ""), std::nullopt, {}, identity::PublicPrefixes(file)};
  MutexLock lock(tenants->mutex_);
  tenants->state_ = std::make_shared<const State>(State{std::move(snapshot), std::move(secret)});
  return tenants;
}

std::shared_ptr<const Tenants::State> Tenants::state() const {
  MutexLock lock(mutex_);
  return state_;
}

identity::Verdict Tenants::Authenticate(const identity::Credentials& credentials) const {
  const auto now = state();
  if (!now->snapshot) {
    if (options_.no_auth) return {DefaultTenant(), identity::Refusal::kNone, ""};
    return {nullptr, identity::Refusal::kMissing, "no tenants file"};
  }
  return identity::Authenticate(*now->snapshot, credentials, clock_.WallNow());
}

identity::TenantPtr Tenants::Find(const TenantId& id) const {
  const auto now = state();
  if (now->snapshot) return now->snapshot->table.ById(id.value());
  return options_.no_auth && id == DefaultTenant()->id ? DefaultTenant() : nullptr;
}

kv::CacheDomain Tenants::DomainOf(const identity::Tenant& tenant, absl::Span<const int32_t> prompt,
                                  absl::string_view salt) const {
  const auto now = state();
  // Who salts wants to be alone, with public beginnings too.
  if (!salt.empty() || !now->snapshot) return now->secret.DomainOf(tenant, salt);
  return now->secret.DomainOf(tenant, now->snapshot->public_prefixes.Match(prompt));
}

std::vector<TenantId> Tenants::Ids() const {
  const auto now = state();
  std::vector<TenantId> ids;
  if (now->snapshot) {
    for (const identity::TenantPtr& tenant : now->snapshot->table.tenants())
      ids.push_back(tenant->id);
  } else if (options_.no_auth) {
    ids.push_back(DefaultTenant()->id);
  }
  return ids;
}

absl::StatusOr<identity::Snapshot> Tenants::ReadSnapshot() {
  const std::string& path = options_.tenants_file;
  SLUICE_ASSIGN_OR_RETURN(const std::string yaml,
                          files_.Read("tenants_file", path, config::kTenantsFileBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const v1::TenantsFile file, config::LoadTenants(yaml, path));
  std::string pepper;
  if (!file.key_pepper_file().empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        pepper, files_.Read("key_pepper_file", config::PathBeside(path, file.key_pepper_file()),
                            kSecretFileBytesMax));
    pepper = identity::PepperIn(pepper);
  }
  SLUICE_ASSIGN_OR_RETURN(identity::TenantTable table,
                          identity::TenantTable::Create(file, std::move(pepper)));
  identity::Snapshot snapshot{std::move(table), std::nullopt, {}, identity::PublicPrefixes(file)};
  if (file.has_jwt()) {
    const std::string keys_path = config::PathBeside(path, file.jwt().jwks_file());
    SLUICE_ASSIGN_OR_RETURN(const std::string json,
                            files_.Read("jwt.jwks_file", keys_path, identity::kJwksBytesMax));
    SLUICE_ASSIGN_OR_RETURN(snapshot.jwt_keys, identity::JwtKeys::Parse(json, keys_path));
    snapshot.jwt_rules = {file.jwt().issuer(), file.jwt().audience(), file.jwt().tenant_claim()};
  }
  return snapshot;
}

absl::StatusOr<identity::CacheSecret> Tenants::ReadSecret() {
  std::string text = random_;
  if (!options_.cache_secret_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        text, files_.Read("cache_secret_file", options_.cache_secret_file, kSecretFileBytesMax));
  }
  return identity::CacheSecret::Parse(text, "cache_secret_file");
}

absl::Status Tenants::Read(bool* read) {
  files_.Begin();
  absl::StatusOr<identity::CacheSecret> secret = ReadSecret();
  absl::StatusOr<identity::Snapshot> snapshot = absl::NotFoundError("none");
  if (!options_.tenants_file.empty()) snapshot = ReadSnapshot();
  *read = !files_.SameAsBefore();
  if (!*read) return absl::OkStatus();
  if (!secret.ok()) return secret.status();
  if (!options_.tenants_file.empty() && !snapshot.ok()) return snapshot.status();
  auto next = std::make_shared<const State>(State{
      snapshot.ok() ? std::make_optional(*std::move(snapshot)) : std::nullopt, *std::move(secret)});
  SLUICE_LOG(kInfo) << "tenants"
                    << Field("tenants", next->snapshot ? next->snapshot->table.tenants().size() : 0)
                    << Field("cache_secret", next->secret.fingerprint());
  MutexLock lock(mutex_);
  state_ = std::move(next);
  return absl::OkStatus();
}

absl::Status Tenants::Refresh(bool* read) {
  *read = false;
  return files_.Changed() ? Read(read) : absl::OkStatus();
}

}  // namespace sluice::router
