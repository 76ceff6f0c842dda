// The records behind a TlsTransport: its TCP connections and its peers. Internal to the folder.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/certificates/service_identity.h"
#include "base/ids.h"
#include "transport/buffer_pool.h"
#include "transport/tls/tls_connection.h"
#include "transport/transport.h"

namespace sluice::transport {

struct TlsEndpoint {
  EndpointId id;
  Id128 peer;
  std::string identity;     // of the peer's certificate
  uint64_t peer_epoch = 0;  // of the other end, 0 until it was heard
  uint64_t link = 0;        // serial; 0 while the peer's own dial is awaited
  int ticks = 0;            // waited for it
  bool open = false;        // hellos were exchanged
  bool ended = false;
  absl::Status reason;
  std::deque<PooledBuffer> queue;  // frames
  size_t queued_bytes = 0;
  size_t written = 0;  // of the first
};

struct TlsLink {
  uint64_t serial = 0;
  std::unique_ptr<TlsConnection> connection;
  TlsEndpoint* endpoint = nullptr;  // none until the hello of one that was accepted
  ServiceIdentity peer;             // once encrypted
  bool encrypted = false;
  bool open = false;
  int ticks = 0;  // waited for the hello
  uint32_t interest = 0;

  bool dialed() const { return connection->side() == TlsConnection::Side::kDialer; }
};

}  // namespace sluice::transport
