// Whether certificate files can be used, said in words before a library says it in its own.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/certificates/service_identity.h"

struct x509_st;  // OpenSSL's X509

namespace sluice {

struct CertificateFacts {
  ServiceIdentity identity;
  absl::Time not_after;  // wall clock
};

// Reads the files of anybody, not of a service: the key must be the certificate's, the authorities
// at least one certificate. Errors: INVALID_ARGUMENT naming the file and what is wrong with it.
absl::Status CheckKeyPair(const CertificateFiles& files);

// Reads the files: the key must be the certificate's, the authorities at least one certificate, the
// certificate that of a service. Whether it is in time is not asked: clocks may be set later.
// Errors: INVALID_ARGUMENT naming the file and what is wrong with it.
absl::StatusOr<CertificateFacts> CheckCertificateFiles(const CertificateFiles& files);

// What a certificate says about its owner. Errors: as ServiceIdentity::FromUris.
absl::StatusOr<ServiceIdentity> IdentityOf(const x509_st& certificate);

// The reasons in OpenSSL's queue of this thread, which is emptied; "no reason given" if there are
// none.
std::string OpenSslReason();

}  // namespace sluice
