#include "transport/tls/tls_context.h"

#include <openssl/err.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "base/certificates/certificate_check.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace sluice::transport {
namespace {

constexpr int kReadAheadBytes = 128 << 10;

std::string NameOf(const X509& certificate) {
  const absl::StatusOr<ServiceIdentity> identity = IdentityOf(certificate);
  if (identity.ok()) return identity->ToUri();
  char subject[128];
  X509_NAME_oneline(X509_get_subject_name(&certificate), subject, sizeof(subject));
  return subject;
}

// Runs for every certificate of a peer's chain. Only notes what OpenSSL found.
int OnVerified(int fine, X509_STORE_CTX* store) {
  if (fine == 1) return fine;
  auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* problem = static_cast<std::string*>(SSL_get_app_data(ssl));
  const X509* leaf = X509_STORE_CTX_get0_cert(store);
  if (problem == nullptr || leaf == nullptr) return fine;
  char issuer[128];
  X509_NAME_oneline(X509_get_issuer_name(leaf), issuer, sizeof(issuer));
  *problem = absl::StrCat("the peer presented ", NameOf(*leaf), " issued by ", issuer, ": ",
                          X509_verify_cert_error_string(X509_STORE_CTX_get_error(store)));
  return fine;
}

}  // namespace

void NoteVerification(SSL* ssl, std::string* problem) { SSL_set_app_data(ssl, problem); }

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Create(const CertificateFiles& files) {
  std::unique_ptr<TlsContext> context(new TlsContext(files));
  context->version_ = context->Look();
  SLUICE_RETURN_IF_ERROR(context->Load());
  return context;
}

TlsContext::Version TlsContext::Look() const {
  Version version{};
  size_t at = 0;
  for (const std::string* path : {&files_.certificate, &files_.key, &files_.authorities}) {
    struct stat about {};
    if (stat(path->c_str(), &about) == 0) {
      version[at] = about.st_ino;
      version[at + 1] = static_cast<uint64_t>(about.st_size);
      version[at + 2] = static_cast<uint64_t>(about.st_mtim.tv_sec) * 1'000'000'000 +
                        static_cast<uint64_t>(about.st_mtim.tv_nsec);
    }
    at += 3;
  }
  return version;
}

absl::Status TlsContext::Load() {
  SLUICE_ASSIGN_OR_RETURN(const CertificateFacts facts, CheckCertificateFiles(files_));
  SslContext context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) return absl::InternalError(OpenSslReason());
  SSL_CTX* raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  // Frames carry their length, so an end without a goodbye cannot be mistaken for a shorter one.
  SSL_CTX_set_options(raw, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(raw, 1);
  SSL_CTX_set_default_read_buffer_len(raw, kReadAheadBytes);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, OnVerified);
  const bool used = SSL_CTX_use_certificate_chain_file(raw, files_.certificate.c_str()) == 1 &&
                    SSL_CTX_use_PrivateKey_file(raw, files_.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
                    SSL_CTX_load_verify_locations(raw, files_.authorities.c_str(), nullptr) == 1;
  if (!used) {
    return absl::InvalidArgumentError(absl::StrCat("cannot use ", files_.certificate, ", ",
                                                   files_.key, " and ", files_.authorities, ": ",
                                                   OpenSslReason()));
  }
  own_ = facts.identity;
  context_ = std::move(context);
  return absl::OkStatus();
}

SSL_CTX* TlsContext::Current() {
  const Version version = Look();
  if (version == version_) return context_.get();
  version_ = version;
  const absl::Status loaded = Load();
  if (loaded.ok()) {
    SLUICE_LOG(kInfo) << "tls: new certificate" << Field("identity", own_.ToUri());
  } else {
    SLUICE_LOG(kWarning) << "tls: keeping the certificate in use" << Field("why", loaded.message());
  }
  return context_.get();
}

}  // namespace sluice::transport
