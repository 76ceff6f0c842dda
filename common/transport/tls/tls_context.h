// Certificate, key and authorities as OpenSSL wants them, read again when the files change.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/certificates/service_identity.h"

namespace sluice::transport {

struct SslContextFree {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslContext = std::unique_ptr<SSL_CTX, SslContextFree>;

// TLS 1.3 only, both ends show a certificate, no resumption, so every connection is checked anew.
// Belongs to one loop.
class TlsContext {
 public:
  // Errors: INVALID_ARGUMENT naming the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Create(const CertificateFiles& files);

  // For the next connection; connections keep what they began with. Looks at the files (three
  // stat calls) and reads them if they have changed. What cannot be used is reported to the log
  // once and tried again when it changes: half a rotation lasts a moment.
  SSL_CTX* Current();
  // Of the certificate in use.
  const ServiceIdentity& own() const { return own_; }

 private:
  // Tells versions of the three files apart: inode, size and time of change of each.
  using Version = std::array<uint64_t, 9>;

  explicit TlsContext(const CertificateFiles& files) : files_(files) {}
  Version Look() const;
  absl::Status Load();

  const CertificateFiles files_;
  Version version_{};
  SslContext context_;
  ServiceIdentity own_;
};

// Why a peer's certificate was refused during the handshake of `ssl`, or empty. Attach it before.
void NoteVerification(SSL* ssl, std::string* problem);

}  // namespace sluice::transport
