#include "base/certificates/trial_authority.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/replace_file.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kSerialBytes = 16;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

absl::Status Failed(absl::string_view what) {
  char text[256] = "no reason given";
  if (const unsigned long code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", what, ": ", text));
}

std::string Contents(BIO* bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return bytes <= 0 ? "" : std::string(data, static_cast<size_t>(bytes));
}

absl::StatusOr<IssuedCertificate> ToPem(X509* certificate, EVP_PKEY* key) {
  const Bio certificate_out(BIO_new(BIO_s_mem())), key_out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_out.get(), certificate) != 1 ||
      PEM_write_bio_PrivateKey(key_out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("write a certificate");
  }
  return IssuedCertificate{Contents(certificate_out.get()), Contents(key_out.get())};
}

absl::Status Add(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return Failed(absl::StrCat("put \"", value, "\" into a certificate"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Certificate> NewCertificate(const std::string& common_name, EVP_PKEY* key,
                                           absl::Duration backdated, absl::Duration valid_for) {
  Certificate certificate(X509_new());
  unsigned char serial[kSerialBytes];
  if (certificate == nullptr || RAND_bytes(serial, sizeof(serial)) != 1)
    return Failed("start a certificate");
  serial[0] =
      static_cast<unsigned char>((serial[0] & 0x3f) | 0x40);  // positive, and no zeros in front
  ASN1_INTEGER* number = X509_get_serialNumber(certificate.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const auto* name = reinterpret_cast<const unsigned char*>(common_name.c_str());
  const bool made =
      X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
      ASN1_STRING_set(number, serial, sizeof(serial)) == 1 &&
      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -absl::ToInt64Seconds(backdated)) !=
          nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()),
                      absl::ToInt64Seconds(valid_for - backdated)) != nullptr &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, name, -1, -1, 0) == 1 &&
      X509_set_pubkey(certificate.get(), key) == 1;
  if (!made) return Failed("fill a certificate");
  return certificate;
}

absl::StatusOr<std::string> AlternativeNames(const CertificateOptions& options) {
  std::vector<std::string> names;
  for (const std::string& uri : options.uris) names.push_back(absl::StrCat("URI:", uri));
  for (const std::string& host : options.hosts) {
    unsigned char address[sizeof(in6_addr)];
    const bool is_address = inet_pton(AF_INET, host.c_str(), address) == 1 ||
                            inet_pton(AF_INET6, host.c_str(), address) == 1;
    names.push_back(absl::StrCat(is_address ? "IP:" : "DNS:", host));
  }
  for (const std::string& name : names) {
    // A comma would begin another name in OpenSSL's notation.
    if (name.find_first_of(", \n") != std::string::npos || name.back() == ':') {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", absl::CHexEscape(name), "\" cannot stand in a certificate"));
    }
  }
  return absl::StrJoin(names, ",");
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot make the folder ", folder, ": ", error.message()));
}

}  // namespace

absl::StatusOr<TrialAuthority> TrialAuthority::Create(const std::string& name,
                                                      absl::Duration valid_for) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  SLUICE_ASSIGN_OR_RETURN(const Certificate certificate,
                          NewCertificate(name, key.get(), absl::Minutes(5), valid_for));
  X509* raw = certificate.get();
  if (X509_set_issuer_name(raw, X509_get_subject_name(raw)) != 1) return Failed("name an issuer");
  SLUICE_RETURN_IF_ERROR(Add(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  SLUICE_RETURN_IF_ERROR(Add(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign"));
  SLUICE_RETURN_IF_ERROR(Add(raw, raw, NID_subject_key_identifier, "hash"));
  if (X509_sign(raw, key.get(), EVP_sha256()) == 0) return Failed("sign a certificate");
  TrialAuthority authority;
  SLUICE_ASSIGN_OR_RETURN(authority.own_, ToPem(raw, key.get()));
  return authority;
}

absl::StatusOr<IssuedCertificate> TrialAuthority::Issue(const CertificateOptions& options) const {
  SLUICE_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(options));
  const Bio certificate_in(
      BIO_new_mem_buf(own_.certificate_pem.data(), static_cast<int>(own_.certificate_pem.size())));
  const Bio key_in(BIO_new_mem_buf(own_.key_pem.data(), static_cast<int>(own_.key_pem.size())));
  const Certificate issuer(PEM_read_bio_X509(certificate_in.get(), nullptr, nullptr, nullptr));
  const Key issuer_key(PEM_read_bio_PrivateKey(key_in.get(), nullptr, nullptr, nullptr));
  const Key key(EVP_EC_gen("P-256"));
  if (issuer == nullptr || issuer_key == nullptr || key == nullptr) return Failed("make a key");
  SLUICE_ASSIGN_OR_RETURN(
      const Certificate certificate,
      NewCertificate("sluice", key.get(), options.backdated, options.valid_for));
  X509* raw = certificate.get();
  if (X509_set_issuer_name(raw, X509_get_subject_name(issuer.get())) != 1)
    return Failed("name an issuer");
  SLUICE_RETURN_IF_ERROR(Add(raw, issuer.get(), NID_basic_constraints, "critical,CA:FALSE"));
  SLUICE_RETURN_IF_ERROR(Add(raw, issuer.get(), NID_key_usage, "critical,digitalSignature"));
  SLUICE_RETURN_IF_ERROR(Add(raw, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth"));
  SLUICE_RETURN_IF_ERROR(Add(raw, issuer.get(), NID_authority_key_identifier, "keyid:always"));
  if (!names.empty()) SLUICE_RETURN_IF_ERROR(Add(raw, issuer.get(), NID_subject_alt_name, names));
  if (X509_sign(raw, issuer_key.get(), EVP_sha256()) == 0) return Failed("sign a certificate");
  return ToPem(raw, key.get());
}

absl::Status WriteCertificateFolder(const std::string& folder, const IssuedCertificate& issued,
                                    const std::string& authorities_pem) {
  SLUICE_RETURN_IF_ERROR(MakeFolder(folder));
  const CertificateFiles files = CertificateFilesIn(folder);
  SLUICE_RETURN_IF_ERROR(ReplaceFile(files.authorities, authorities_pem, 0644));
  SLUICE_RETURN_IF_ERROR(ReplaceFile(files.key, issued.key_pem, 0600));
  return ReplaceFile(files.certificate, issued.certificate_pem, 0644);
}

absl::Status WriteTrialCertificates(const std::string& folder, const std::string& name,
                                    const CertificateOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const TrialAuthority authority,
                          TrialAuthority::Create("sluice trial authority", options.valid_for));
  SLUICE_RETURN_IF_ERROR(MakeFolder(folder));
  SLUICE_RETURN_IF_ERROR(
      ReplaceFile(absl::StrCat(folder, "/ca.crt"), authority.own().certificate_pem, 0644));
  for (const ServiceRole role : kServiceRoles) {
    CertificateOptions own = options;
    const ServiceIdentity identity = {role, name};
    SLUICE_RETURN_IF_ERROR(ServiceIdentity::FromUri(identity.ToUri()).status());
    own.uris = {identity.ToUri()};
    SLUICE_ASSIGN_OR_RETURN(const IssuedCertificate issued, authority.Issue(own));
    SLUICE_RETURN_IF_ERROR(WriteCertificateFolder(absl::StrCat(folder, "/", ServiceRoleName(role)),
                                                  issued, authority.own().certificate_pem));
  }
  return absl::OkStatus();
}

}  // namespace sluice
