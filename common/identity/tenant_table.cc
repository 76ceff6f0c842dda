#include "identity/tenant_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "config/tenants.h"
#include "identity/api_key.h"
#include "identity/digest.h"

namespace sluice::identity {
namespace {

TenantPtr FindIn(const absl::flat_hash_map<std::string, TenantPtr>& map, absl::string_view key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

absl::StatusOr<TenantTable> TenantTable::Create(const v1::TenantsFile& file, std::string pepper) {
  TenantTable table;
  for (const v1::TenantEntry& entry : file.tenants()) {
    const auto tenant = std::make_shared<const Tenant>(
        Tenant{TenantId(entry.id()), entry.sharing_group(), entry.trusted_proxy(), entry.limits()});
    table.tenants_.push_back(tenant);
    table.by_id_[entry.id()] = tenant;
    for (const std::string& hash : entry.key_hashes()) table.by_hash_[hash] = tenant;
    for (const std::string& subject : entry.jwt_subjects()) table.by_subject_[subject] = tenant;
    for (const std::string& name : entry.mtls_names()) table.by_certificate_[name] = tenant;
  }
  if (file.has_default_class())
    table.default_class_ = std::make_shared<const v1::TenantLimits>(file.default_class());
  if (!table.by_hash_.empty() && pepper.size() < kSecretBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("key_pepper_file: ", file.key_pepper_file(), " holds ", pepper.size(),
                     " characters in its first line; it must be at least ", kSecretBytesMin));
  }
  table.pepper_ = std::move(pepper);
  return table;
}

TenantPtr TenantTable::ByKey(absl::string_view key) const {
  if (key.empty() || key.size() > kApiKeyBytesMax || by_hash_.empty()) return nullptr;
  const std::string hash = HashApiKey(pepper_, key);
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end() || !EqualInConstantTime(found->first, hash)) return nullptr;
  return found->second;
}

TenantPtr TenantTable::BySubject(absl::string_view subject) const {
  if (TenantPtr tenant = FindIn(by_subject_, subject)) return tenant;
  return by_id_.contains(subject) ? nullptr : OfDefaultClass(subject);
}

TenantPtr TenantTable::ByCertificate(absl::Span<const std::string> names) const {
  for (const std::string& name : names) {
    if (TenantPtr tenant = FindIn(by_certificate_, name)) return tenant;
  }
  return nullptr;
}

TenantPtr TenantTable::ById(absl::string_view id) const {
  if (TenantPtr tenant = FindIn(by_id_, id)) return tenant;
  return OfDefaultClass(id);
}

TenantPtr TenantTable::OfDefaultClass(absl::string_view name) const {
  if (default_class_ == nullptr || !config::WrongTenantId(name).empty()) return nullptr;
  return std::make_shared<const Tenant>(
      Tenant{TenantId(std::string(name)), "", false, *default_class_});
}

}  // namespace sluice::identity
