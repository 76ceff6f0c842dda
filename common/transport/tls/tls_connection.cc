#include "transport/tls/tls_connection.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/certificates/certificate_check.h"
#include "base/status_macros.h"
#include "transport/tls/tls_context.h"

namespace sluice::transport {
namespace {

// Encrypted bytes collected for one call of the kernel; OpenSSL writes 16 KiB at a time.
constexpr size_t kOutBytes = 128 << 10;
constexpr size_t kDrainBytes = 64 << 10;

}  // namespace

// OpenSSL's own socket BIO would raise SIGPIPE and call the kernel for every record.
struct TlsConnection::Pipe {
  static TlsConnection& Of(BIO* bio) { return *static_cast<TlsConnection*>(BIO_get_data(bio)); }

  static int Write(BIO* bio, const char* data, size_t bytes, size_t* written) {
    TlsConnection& self = Of(bio);
    BIO_clear_retry_flags(bio);
    if (self.out_.size() >= kOutBytes && !self.SendOut()) {
      if (self.error_ == 0) BIO_set_retry_write(bio);
      return 0;
    }
    self.out_.insert(self.out_.end(), data, data + bytes);
    *written = bytes;
    return 1;
  }

  static int Read(BIO* bio, char* data, size_t bytes, size_t* got) {
    TlsConnection& self = Of(bio);
    BIO_clear_retry_flags(bio);
    const ssize_t received = recv(self.fd_.get(), data, bytes, MSG_DONTWAIT);
    if (received > 0) {
      *got = static_cast<size_t>(received);
      return 1;
    }
    if (received == 0) {
      self.end_of_input_ = true;
    } else if (errno == EAGAIN || errno == EINTR) {
      BIO_set_retry_read(bio);
    } else {
      self.error_ = errno;
    }
    return 0;
  }

  static long Control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
    if (command == BIO_CTRL_EOF) return Of(bio).end_of_input_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;  // Flush() does, later
  }

  static int Create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }

  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "sluice");
      BIO_meth_set_write_ex(made, Write);
      BIO_meth_set_read_ex(made, Read);
      BIO_meth_set_ctrl(made, Control);
      BIO_meth_set_create(made, Create);
      return made;
    }();
    return method;
  }
};

absl::StatusOr<std::unique_ptr<TlsConnection>> TlsConnection::Create(UniqueFd fd, Side side,
                                                                     SSL_CTX* context,
                                                                     BufferPool& buffers) {
  std::unique_ptr<TlsConnection> connection(new TlsConnection(std::move(fd), side, buffers));
  connection->ssl_.reset(SSL_new(context));
  BIO* bio = BIO_new(Pipe::Method());
  if (connection->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return absl::InternalError(absl::StrCat("OpenSSL has no connection: ", OpenSslReason()));
  }
  SSL* ssl = connection->ssl_.get();
  BIO_set_data(bio, connection.get());
  SSL_set_bio(ssl, bio, bio);  // takes it
  NoteVerification(ssl, &connection->problem_);
  if (side == Side::kDialer) {
    SSL_set_connect_state(ssl);
  } else {
    SSL_set_accept_state(ssl);
    connection->connected_ = true;
  }
  return connection;
}

TlsConnection::~TlsConnection() {
  if (error_ != 0 || !connected_) return;
  ERR_clear_error();
  // A goodbye behind half a record that the network did not take would only be noise.
  if (encrypted_ && SendOut() && SSL_shutdown(ssl_.get()) >= 0) SendOut();
  ERR_clear_error();
  // Unread bytes would turn the end into a reset, and the peer would not hear why.
  shutdown(fd_.get(), SHUT_WR);
  std::array<char, 4096> unread;
  for (size_t bytes = 0; bytes < kDrainBytes; bytes += unread.size()) {
    if (recv(fd_.get(), unread.data(), unread.size(), MSG_DONTWAIT) <= 0) break;
  }
}

bool TlsConnection::SendOut() {
  while (sent_ < out_.size()) {
    const ssize_t sent =
        send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      error_ = errno;
      return false;
    }
  }
  out_.clear();
  sent_ = 0;
  return true;
}

absl::Status TlsConnection::Outcome(int result) {
  const int kind = SSL_get_error(ssl_.get(), result);
  if (error_ != 0) {
    return absl::UnavailableError(absl::StrCat("the connection failed: ", strerror(error_)));
  }
  switch (kind) {
    case SSL_ERROR_NONE:
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return absl::OkStatus();
    case SSL_ERROR_ZERO_RETURN:
      return absl::UnavailableError("the peer closed the connection");
    default:
      break;
  }
  if (end_of_input_) {
    ERR_clear_error();
    return absl::UnavailableError("the peer closed the connection");
  }
  const std::string reason = OpenSslReason();
  return absl::UnauthenticatedError(
      absl::StrCat("TLS failed: ", reason, problem_.empty() ? "" : "; ", problem_));
}

absl::StatusOr<bool> TlsConnection::Handshake() {
  if (encrypted_) return true;
  if (!connected_) {
    SLUICE_RETURN_IF_ERROR(DialError(fd_.get()));
    // Before it is connected a socket has no error and no peer either.
    sockaddr_storage peer{};
    socklen_t bytes = sizeof(peer);
    if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return false;
    connected_ = true;
  }
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  const absl::Status outcome = result == 1 ? absl::OkStatus() : Outcome(result);
  SendOut();  // an alert too; an error shows at the next call
  SLUICE_RETURN_IF_ERROR(outcome);
  encrypted_ = result == 1;
  return encrypted_;
}

absl::StatusOr<ServiceIdentity> TlsConnection::Peer() const {
  const X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr) return absl::UnauthenticatedError("the peer has no certificate");
  return IdentityOf(*certificate);
}

absl::StatusOr<size_t> TlsConnection::ReadSome(uint8_t* to, size_t bytes) {
  size_t got = 0;
  ERR_clear_error();
  const int result = SSL_read_ex(ssl_.get(), to, bytes, &got);
  if (result == 1) return got;
  SLUICE_RETURN_IF_ERROR(Outcome(result));
  return 0;
}

absl::StatusOr<std::optional<TlsMessage>> TlsConnection::Read(size_t body_bytes_max,
                                                              size_t& budget) {
  while (budget > 0) {
    if (!message_.has_value()) {
      SLUICE_ASSIGN_OR_RETURN(const size_t got,
                              ReadSome(head_.data() + head_bytes_, head_.size() - head_bytes_));
      if (got == 0) return std::nullopt;
      head_bytes_ += got;
      budget -= std::min(budget, got);
      if (head_bytes_ < head_.size()) continue;
      head_bytes_ = 0;
      SLUICE_ASSIGN_OR_RETURN(const TlsFrame frame, TlsFrame::Decode(head_, body_bytes_max));
      message_.emplace(TlsMessage{frame, buffers_.Take(frame.body_bytes())});
      body_bytes_ = 0;
    }
    const size_t wanted = message_->frame.body_bytes() - body_bytes_;
    if (wanted == 0) return std::exchange(message_, std::nullopt);
    SLUICE_ASSIGN_OR_RETURN(const size_t got,
                            ReadSome(message_->body.data() + body_bytes_, wanted));
    if (got == 0) return std::nullopt;
    body_bytes_ += got;
    budget -= std::min(budget, got);
    if (got == wanted) return std::exchange(message_, std::nullopt);
  }
  return std::nullopt;
}

absl::StatusOr<bool> TlsConnection::Write(absl::Span<const uint8_t> bytes, size_t& written) {
  ERR_clear_error();
  while (written < bytes.size()) {
    size_t taken = 0;
    const int result =
        SSL_write_ex(ssl_.get(), bytes.data() + written, bytes.size() - written, &taken);
    if (result != 1) {
      SLUICE_RETURN_IF_ERROR(Outcome(result));
      return false;
    }
    written += taken;
  }
  return true;
}

absl::StatusOr<bool> TlsConnection::Flush() {
  const bool empty = SendOut();
  if (error_ != 0) return Outcome(-1);
  return empty;
}

}  // namespace sluice::transport
