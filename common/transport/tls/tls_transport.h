// Transport over TCP with TLS 1.3 and certificates at both ends: for workers on different hosts
// that have no RDMA. Offers carry their bytes; the receiver copies them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/certificates/service_identity.h"
#include "base/ids.h"
#include "transport/buffer_pool.h"
#include "transport/private_memory.h"
#include "transport/tls/tcp_socket.h"
#include "transport/transport.h"

namespace sluice::transport {

struct TlsOptions {
  CertificateFiles files;
  // Whose certificates are accepted from those who connect.
  ServiceRoles peers = {ServiceRole::kPrefill, ServiceRole::kDecode};
  // IP:PORT; port 0 takes any.
  std::string listen = "127.0.0.1:0";
  // IP address that others reach it at; empty: that of `listen`, which then must not be 0.0.0.0.
  std::string advertise;
  absl::Duration keepalive = absl::Seconds(1);
  // Connecting, TLS and hello together, within a quarter.
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Connections that have not introduced themselves; a newer one drives out the oldest.
  size_t handshakes_max = 64;
  Limits limits;
};

class TlsContext;
struct TlsEndpoint;
struct TlsHello;
struct TlsLink;
struct TlsMessage;

// One connection per pair of transports, whoever dialed it: when both did, that of the smaller id
// stays. Nothing but hellos travels before that is decided, so nothing is lost.
class TlsTransport final : public Transport {
 public:
  // Errors: INVALID_ARGUMENT for addresses and certificate files that cannot be used, UNAVAILABLE
  // when it cannot listen, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<TlsTransport>> Create(const TlsOptions& options);
  ~TlsTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override;
  absl::StatusOr<Region> AllocateRegion(size_t bytes) override;
  absl::StatusOr<EndpointId> Connect(absl::string_view address) override;
  absl::Status Send(EndpointId to, absl::string_view header,
                    absl::Span<const uint8_t> payload) override;
  absl::StatusOr<FetchId> Fetch(EndpointId from, absl::string_view remote_key, uint64_t offset,
                                absl::Span<uint8_t> local) override;
  void Close(EndpointId endpoint) override;
  bool Poll(Events& events) override;
  int EventFd() const override { return epoll_.get(); }
  bool PrepareSleep() override;
  uint64_t refused(Refusal reason) const override;

 private:
  explicit TlsTransport(const TlsOptions& options);
  absl::Status Init();
  bool Watch(int fd, uint64_t serial, uint32_t interest, int operation);

  // Verbs and the loop: tls_transport.cc.
  TlsEndpoint* FindOpen(EndpointId id);
  absl::StatusOr<TlsEndpoint*> AddEndpoint(const Id128& peer, const std::string& identity);
  // Encrypts what is queued as far as the network takes it.
  void Pump(TlsEndpoint& endpoint);
  void ReadFrom(uint64_t serial, Events& events);
  void Serve(uint64_t serial, uint32_t what, Events& events);
  // The owner hears of it in the next Poll; the connection is gone at once.
  void End(TlsEndpoint& endpoint, const absl::Status& reason);
  bool ReportEnded(Events& events);

  // How connections begin: tls_links.cc.
  void AcceptAll();
  absl::Status AddLink(UniqueFd fd, bool dialer, TlsEndpoint* endpoint);
  void MakeRoomForHandshake();
  absl::Status Introduce(TlsLink& link);
  absl::Status HandleFrame(TlsLink& link, const TlsMessage& message, Events& events);
  absl::Status HandleAnswer(TlsLink& link, const TlsHello& hello);
  absl::Status HandleHello(TlsLink& link, const TlsHello& hello);
  void Attach(TlsLink& link, TlsEndpoint& endpoint, const TlsHello& hello);
  void HandleYield(TlsLink& link);
  // Tells the peer why, and returns that as the reason to drop it.
  absl::Status Refuse(TlsLink& link, const absl::Status& reason);
  absl::Status SendControl(TlsLink& link, uint32_t kind, absl::string_view header);
  void Count(Refusal reason, const TlsLink& link, const absl::Status& status);
  // Ends what the connection stood for.
  void Drop(TlsLink& link, const absl::Status& reason);
  void Remove(uint64_t serial);
  void Tick();
  void ArmTicks();

  const TlsOptions options_;
  const Id128 id_;
  Capabilities capabilities_;
  BufferPool buffers_;
  std::unique_ptr<TlsContext> context_;
  SocketAddress address_;  // that others reach
  UniqueFd epoll_;
  UniqueFd timer_;
  UniqueFd listener_;
  UniqueFd spare_;  // given up to take and close a connection when descriptors have run out
  absl::btree_map<uint64_t, std::unique_ptr<TlsLink>> links_;  // by serial, so oldest first
  absl::btree_map<EndpointId, std::unique_ptr<TlsEndpoint>> endpoints_;
  absl::flat_hash_map<Id128, TlsEndpoint*> open_;  // by peer
  std::vector<uint64_t> unread_;                   // links with more to read than a Poll takes
  std::vector<std::pair<uint64_t, absl::Status>> failed_;  // links that broke while sending
  std::deque<EndpointId> ended_;                           // not yet reported
  std::vector<PrivateMemory> regions_;
  bool ticking_ = false;
  uint64_t last_serial_;
  uint64_t last_endpoint_ = 0;
  std::array<std::atomic<uint64_t>, kRefusals.size()> refused_{};
};

}  // namespace sluice::transport
