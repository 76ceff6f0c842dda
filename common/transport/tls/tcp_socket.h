// TCP sockets as the tls backend uses them: never blocking, never inherited, IP addresses only.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::transport {

// Closes its descriptor. Move-only; -1 is none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "10.0.0.7" or "fe80::1", without brackets.
struct SocketAddress {
  std::string host;
  uint16_t port = 0;

  // "10.0.0.7:80", "[::1]:0". Errors: INVALID_ARGUMENT with the text and the expected form.
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);
  // 0.0.0.0 or ::, which nobody can connect to.
  bool IsAny() const;
  std::string ToString() const;
};

// `address` gets the port that was bound. Errors: UNAVAILABLE with the address and the reason.
absl::StatusOr<UniqueFd> ListenTcp(SocketAddress& address);
// The connection may still be under way. Errors: UNAVAILABLE.
absl::StatusOr<UniqueFd> DialTcp(const SocketAddress& address);
// Why a dial failed, or OK: SO_ERROR.
absl::Status DialError(int fd);
// No delay of small messages; a peer that is silent is probed every `keepalive`, and given up when
// nothing was acknowledged for 15 of them. Best effort.
void TuneTcp(int fd, absl::Duration keepalive);
// "10.0.0.7:41234" of the other end, or "?".
std::string PeerOf(int fd);

}  // namespace sluice::transport
