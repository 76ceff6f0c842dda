// A certificate authority for trials and tests: it makes keys and certificates of services. For
// real clusters use one that keeps its key elsewhere (cert-manager, SPIRE).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/certificates/service_identity.h"

namespace sluice {

struct IssuedCertificate {
  std::string certificate_pem;
  std::string key_pem;
};

struct CertificateOptions {
  // URIs of the subject. Of a service: exactly one, ServiceIdentity::ToUri().
  std::vector<std::string> uris;
  // Names and addresses for clients that compare the host they call: "localhost", "10.0.0.7".
  std::vector<std::string> hosts;
  absl::Duration valid_for = absl::Hours(24 * 30);
  // Before now, for clocks that are slow; tests of expired certificates make it longer than
  // `valid_for`.
  absl::Duration backdated = absl::Minutes(5);
};

// ECDSA P-256 with SHA-256. Thread-compatible. Cost: under a millisecond a certificate.
class TrialAuthority {
 public:
  // Errors: INTERNAL with OpenSSL's words.
  static absl::StatusOr<TrialAuthority> Create(const std::string& name, absl::Duration valid_for);

  const IssuedCertificate& own() const { return own_; }
  // Errors: INVALID_ARGUMENT for hosts and URIs that cannot stand in a certificate, INTERNAL.
  absl::StatusOr<IssuedCertificate> Issue(const CertificateOptions& options) const;

 private:
  IssuedCertificate own_;
};

// Writes tls.crt, tls.key (for its owner only) and ca.crt into `folder`, which is made. Files are
// replaced by renaming, so that a reader never sees half of one. Errors: UNAVAILABLE with the path
// and the reason.
absl::Status WriteCertificateFolder(const std::string& folder, const IssuedCertificate& issued,
                                    const std::string& authorities_pem);

// An authority and one folder per role in `folder`, as WriteCertificateFolder makes them:
// folder/router/tls.crt and so on, and the authority's folder/ca.crt. `name` is the NAME of every
// identity. The key of the authority is not kept.
absl::Status WriteTrialCertificates(const std::string& folder, const std::string& name,
                                    const CertificateOptions& options);

}  // namespace sluice
