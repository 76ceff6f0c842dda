// One TCP connection with TLS on it: handshake, whole frames in, bytes out. No callbacks.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/certificates/service_identity.h"
#include "transport/buffer_pool.h"
#include "transport/tls/tcp_socket.h"
#include "transport/tls/tls_wire.h"

namespace sluice::transport {

struct TlsMessage {
  TlsFrame frame;
  PooledBuffer body;  // header, then payload

  absl::string_view header() const {
    return {reinterpret_cast<const char*>(body.data()), frame.header_bytes};
  }
  absl::Span<const uint8_t> payload() const {
    return {body.data() + frame.header_bytes, frame.payload_bytes};
  }
};

// Nothing blocks. After an error it can only be destroyed. Belongs to one loop.
class TlsConnection {
 public:
  enum class Side { kDialer, kAcceptor };

  // `buffers` must outlive it; of `context` OpenSSL keeps a share. Errors: INTERNAL.
  static absl::StatusOr<std::unique_ptr<TlsConnection>> Create(UniqueFd fd, Side side,
                                                               SSL_CTX* context,
                                                               BufferPool& buffers);
  // Says goodbye if the peer can still hear it.
  ~TlsConnection();

  int fd() const { return fd_.get(); }
  Side side() const { return side_; }

  // Goes on with connecting and with the handshake; true when done. The acceptor then knows that
  // the peer's certificate is good, the dialer that its peer's is; whether the peer likes the
  // dialer's shows when something is read. Errors: UNAVAILABLE when the network or the peer ended
  // it, UNAUTHENTICATED with what the peer presented.
  absl::StatusOr<bool> Handshake();
  // After the handshake. Errors: as ServiceIdentity::FromUris.
  absl::StatusOr<ServiceIdentity> Peer() const;

  // The next whole message, or none so far. Reads at most about `budget` bytes, which it reduces:
  // at 0 there may be more. Errors: as Handshake, and those of TlsFrame::Decode.
  absl::StatusOr<std::optional<TlsMessage>> Read(size_t body_bytes_max, size_t& budget);
  // Encrypts bytes from `written` on, which it advances; true when all are taken.
  absl::StatusOr<bool> Write(absl::Span<const uint8_t> bytes, size_t& written);
  // Gives the network what was encrypted; true when nothing is left.
  absl::StatusOr<bool> Flush();
  // OpenSSL holds bytes that the descriptor does not announce any more.
  bool HoldsInput() const { return SSL_has_pending(ssl_.get()) == 1; }

 private:
  struct SslFree {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  struct Pipe;  // what OpenSSL reads from and writes to

  TlsConnection(UniqueFd fd, Side side, BufferPool& buffers)
      : fd_(std::move(fd)), side_(side), buffers_(buffers) {}
  // The meaning of a call of OpenSSL that returned `result`; OK if it only waits for the network.
  absl::Status Outcome(int result);
  // Reads up to `bytes` into `to`; 0 if nothing is there.
  absl::StatusOr<size_t> ReadSome(uint8_t* to, size_t bytes);
  bool SendOut();

  UniqueFd fd_;
  const Side side_;
  BufferPool& buffers_;
  std::unique_ptr<SSL, SslFree> ssl_;
  bool connected_ = false;  // TCP
  bool encrypted_ = false;
  bool end_of_input_ = false;
  int error_ = 0;  // errno of the socket
  std::string problem_;
  std::vector<uint8_t> out_;  // encrypted, from sent_ on not yet with the network
  size_t sent_ = 0;
  std::array<uint8_t, TlsFrame::kBytes> head_{};
  size_t head_bytes_ = 0;
  std::optional<TlsMessage> message_;  // whose body is being read
  size_t body_bytes_ = 0;
};

}  // namespace sluice::transport
