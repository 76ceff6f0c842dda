// Who a process is, as its certificate says: a role and a name in the one URI among the subject's
// alternative names.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

enum class ServiceRole { kRouter, kPrefill, kDecode, kCacheManager, kOperator };
inline constexpr ServiceRole kServiceRoles[] = {ServiceRole::kRouter, ServiceRole::kPrefill,
                                                ServiceRole::kDecode, ServiceRole::kCacheManager,
                                                ServiceRole::kOperator};

// "router", "prefill", "decode", "cache-manager", "operator" (a person with the command line tool).
absl::string_view ServiceRoleName(ServiceRole role);

// A set of roles; a value.
class ServiceRoles {
 public:
  constexpr ServiceRoles() = default;
  constexpr ServiceRoles(std::initializer_list<ServiceRole> roles) {
    for (const ServiceRole role : roles) bits_ |= 1u << static_cast<unsigned>(role);
  }
  constexpr bool Contains(ServiceRole role) const {
    return (bits_ >> static_cast<unsigned>(role) & 1u) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  // "sluice://prefill/... or sluice://decode/...", for messages.
  std::string Describe() const;

 private:
  unsigned bits_ = 0;
};

struct ServiceIdentity {
  ServiceRole role = ServiceRole::kOperator;
  std::string name;  // 1 to 128 of [A-Za-z0-9._-]

  // "sluice://ROLE/NAME".
  std::string ToUri() const;
  // "sluice://ROLE/NAME", or a SPIFFE id "spiffe://TRUST-DOMAIN/sluice/ROLE/NAME". The trust domain
  // is not looked at: which authorities are trusted decides. Errors: INVALID_ARGUMENT with the text
  // (escaped) and the expected form.
  static absl::StatusOr<ServiceIdentity> FromUri(absl::string_view uri);
  // Of a certificate: it must have exactly one URI. Errors as FromUri.
  static absl::StatusOr<ServiceIdentity> FromUris(const std::vector<std::string>& uris);

  friend bool operator==(const ServiceIdentity& a, const ServiceIdentity& b) {
    return a.role == b.role && a.name == b.name;
  }
};

// Paths of PEM files. The certificate file may hold a chain, own certificate first.
struct CertificateFiles {
  std::string certificate;
  std::string key;
  std::string authorities;  // of peers

  bool empty() const { return certificate.empty() && key.empty() && authorities.empty(); }
};

// Those in one folder, by the names that Kubernetes gives to the entries of a certificate secret:
// tls.crt, tls.key, ca.crt.
CertificateFiles CertificateFilesIn(absl::string_view folder);

}  // namespace sluice
