// mTLS of gRPC: certificates by files, roles checked by method on servers and by service on
// channels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/certificates/service_identity.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
namespace experimental {
class FileWatcherCertificateProvider;
}
}  // namespace grpc

namespace sluice::rpc {

// Who may call a method, "/sluice.v1.Prefill/Run". Methods that are not in the table are nobody's.
ServiceRoles CallersOf(absl::string_view method);

// TLS towards clients, with a certificate that need not be a service's. A client's certificate is
// verified if it brings one. `files` are those of CheckKeyPair.
std::shared_ptr<grpc::ServerCredentials> CredentialsForClients(
    const CertificateFiles& files, absl::Duration refresh = absl::Seconds(5));

// The certificates of this process. Thread-safe; servers and channels keep their share of it.
class Tls : public std::enable_shared_from_this<Tls> {
 public:
  // Checks the files, and reads them again every `refresh` (whole seconds): new connections then
  // use what is there, running ones keep what they began with. Files that do not fit together are
  // left alone. Errors: as CheckCertificateFiles.
  static absl::StatusOr<std::shared_ptr<const Tls>> Load(const CertificateFiles& files,
                                                         absl::Duration refresh = absl::Seconds(5));
  ~Tls();

  // When it was loaded.
  const ServiceIdentity& identity() const { return identity_; }

  // Asks every client for a certificate and answers PERMISSION_DENIED, saying who called and who
  // may, to callers that CallersOf does not name.
  std::shared_ptr<grpc::ServerCredentials> ForServer() const;
  // Connects only to servers with one of these roles; calls end with UNAVAILABLE otherwise, and
  // their message says who answered and who was expected.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(ServiceRoles servers) const;

  // Calls refused because of their caller's role.
  uint64_t refused_calls() const { return refused_calls_.load(std::memory_order_relaxed); }

 private:
  friend class CallerCheck;
  Tls() = default;

  ServiceIdentity identity_;
  std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> provider_;
  mutable std::atomic<uint64_t> refused_calls_ = 0;
};

}  // namespace sluice::rpc
