// One gRPC server: limits, keepalive, health per service name, reflection. Callback services only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/certificates/service_identity.h"
#include "base/mutex.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace sluice::rpc {

class Tls;

struct ServerOptions {
  std::string listen = "127.0.0.1:0";
  // Listening beyond loopback without TLS was asked for in so many words.
  bool insecure_listen_anywhere = false;
  // Limits against strangers (the public API) or against our own workers.
  bool public_facing = false;
  // Memory of all connections' buffers together.
  size_t memory_bytes_max = size_t{1} << 30;
  // mTLS; null: plaintext.
  std::shared_ptr<const Tls> tls = nullptr;
  // Of a public-facing server: its own certificate, and the authorities of clients' certificates,
  // which are asked for and may be absent; files are read again every few seconds. Empty:
  // plaintext.
  CertificateFiles client_tls = {};
  // A connection without calls this long is closed, so that idle ones do not use up the
  // descriptors; the peer's channel connects again with its next call.
  absl::Duration connection_idle_max = absl::Minutes(1);

  size_t message_bytes_max() const { return public_facing ? size_t{4} << 20 : size_t{64} << 20; }
  int streams_max() const { return public_facing ? 256 : 1024; }
};

// A service to serve, with its name for health checks: {v1::Decode::service_full_name(), &decode}.
struct ServedService {
  std::string name;
  grpc::Service* service;
};

// Thread-safe. The services must outlive it.
class Server {
 public:
  // Binds and serves. Health of "", "startup", "readiness", "liveness" and of every service starts
  // as NOT_SERVING but for "liveness". Errors as CheckListen.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<ServedService>& services);
  ~Server();

  // Bound "host:port".
  const std::string& address() const { return address_; }
  uint16_t port() const { return port_; }

  // Health of "startup", for good.
  void SetStarted();
  // Health of "", "readiness" and every service.
  void SetReady(bool ready);
  // Health of "liveness".
  void SetLive(bool live);

  // Refuses new connections and tells the clients of the others to go elsewhere (GOAWAY); running
  // calls go on. Returns at once. Idempotent.
  void BeginShutdown();
  // The same, and cancels calls that still run after `grace`, and waits for their
  // handlers. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  explicit Server(const std::vector<ServedService>& services);
  void SetHealth(absl::string_view service, bool serving);

  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar ended_cv_;
  bool ended_ SLUICE_GUARDED_BY(mutex_) = false;
  std::thread shutdown_ SLUICE_GUARDED_BY(mutex_);  // while gRPC waits for the calls
  std::vector<std::string> service_names_;
  std::string address_;
  uint16_t port_ = 0;
};

}  // namespace sluice::rpc
