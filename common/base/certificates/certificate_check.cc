#include "base/certificates/certificate_check.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Deleter<GENERAL_NAMES_free>>;

absl::Status Unusable(absl::string_view what, const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot use ", path, " as ", what, ": ", OpenSslReason()));
}

Certificate ReadCertificate(const std::string& path) {
  const Bio file(BIO_new_file(path.c_str(), "r"));
  if (file == nullptr) return nullptr;
  return Certificate(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
}

}  // namespace

std::string OpenSslReason() {
  std::string reasons;
  while (const unsigned long code = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(code);
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", reason == nullptr ? "unknown" : reason);
  }
  return reasons.empty() ? "no reason given" : reasons;
}

absl::StatusOr<ServiceIdentity> IdentityOf(const X509& certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return ServiceIdentity::FromUris(uris);
}

namespace {

// The certificate of files that can be used.
absl::StatusOr<Certificate> ReadUsable(const CertificateFiles& files) {
  ERR_clear_error();
  Certificate certificate = ReadCertificate(files.certificate);
  if (certificate == nullptr) return Unusable("certificate", files.certificate);
  const Bio key_file(BIO_new_file(files.key.c_str(), "r"));
  const Key key(key_file == nullptr
                    ? nullptr
                    : PEM_read_bio_PrivateKey(key_file.get(), nullptr, nullptr, nullptr));
  if (key == nullptr || X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Unusable(absl::StrCat("key of ", files.certificate), files.key);
  }
  if (ReadCertificate(files.authorities) == nullptr) {
    return Unusable("certificates of authorities", files.authorities);
  }
  return certificate;
}

}  // namespace

absl::Status CheckKeyPair(const CertificateFiles& files) { return ReadUsable(files).status(); }

absl::StatusOr<CertificateFacts> CheckCertificateFiles(const CertificateFiles& files) {
  const absl::StatusOr<Certificate> certificate = ReadUsable(files);
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<ServiceIdentity> identity = IdentityOf(**certificate);
  if (!identity.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.certificate, ": ", identity.status().message()));
  }
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate->get()), &end) != 1) {
    return Unusable("certificate", files.certificate);
  }
  return CertificateFacts{*identity, absl::FromTM(end, absl::UTCTimeZone())};
}

}  // namespace sluice
