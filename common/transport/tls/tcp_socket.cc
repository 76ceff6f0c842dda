#include "transport/tls/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::transport {
namespace {

constexpr int kBacklog = 128;
constexpr int kProbesMax = 15;

struct RawAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::StatusOr<RawAddress> ToRaw(const SocketAddress& address) {
  RawAddress raw;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&raw.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&raw.storage);
  if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    raw.bytes = sizeof(*v4);
    return raw;
  }
  if (inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    raw.bytes = sizeof(*v6);
    return raw;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", address.host, "\" is no IP address"));
}

SocketAddress FromRaw(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return {text, ntohs(v6.sin6_port)};
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
  inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  return {text, ntohs(v4.sin_port)};
}

absl::Status Failed(absl::string_view what, const SocketAddress& address) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", address.ToString(), ": ", strerror(errno)));
}

void Set(int fd, int level, int option, int value) {
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof(value)));
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  const size_t colon = text.rfind(':');
  SocketAddress address;
  uint32_t port = 0;
  const bool split = colon != absl::string_view::npos && colon > 0;
  if (split && absl::SimpleAtoi(text.substr(colon + 1), &port) && port <= 65535) {
    absl::string_view host = text.substr(0, colon);
    const bool brackets = host.front() == '[' && host.back() == ']' && host.size() > 2;
    if (brackets) host = host.substr(1, host.size() - 2);
    address.host = std::string(host);
    address.port = static_cast<uint16_t>(port);
    const bool v6 = address.host.find(':') != std::string::npos;
    if (v6 == brackets && ToRaw(address).ok()) return address;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is not an address; write IP:PORT, for example 10.0.0.7:8090 or [::1]:0"));
}

bool SocketAddress::IsAny() const { return host == "0.0.0.0" || host == "::"; }

std::string SocketAddress::ToString() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<UniqueFd> ListenTcp(SocketAddress& address) {
  SLUICE_ASSIGN_OR_RETURN(const RawAddress raw, ToRaw(address));
  UniqueFd fd(socket(raw.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Failed("make a socket for", address);
  Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd.get(), raw.get(), raw.bytes) != 0 || listen(fd.get(), kBacklog) != 0) {
    return Failed("listen on", address);
  }
  RawAddress bound;
  bound.bytes = sizeof(bound.storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.bytes) != 0) {
    return Failed("ask for the port of", address);
  }
  address.port = FromRaw(bound.storage).port;
  return fd;
}

absl::StatusOr<UniqueFd> DialTcp(const SocketAddress& address) {
  SLUICE_ASSIGN_OR_RETURN(const RawAddress raw, ToRaw(address));
  UniqueFd fd(socket(raw.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Failed("make a socket for", address);
  if (connect(fd.get(), raw.get(), raw.bytes) != 0 && errno != EINPROGRESS) {
    return Failed("connect to", address);
  }
  return fd;
}

absl::Status DialError(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot connect: ", strerror(error)));
}

void TuneTcp(int fd, absl::Duration keepalive) {
  const int seconds = static_cast<int>(std::max<int64_t>(absl::ToInt64Seconds(keepalive), 1));
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbesMax);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * kProbesMax * 1000);
}

std::string PeerOf(int fd) {
  RawAddress peer;
  peer.bytes = sizeof(peer.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes) != 0) return "?";
  return FromRaw(peer.storage).ToString();
}

}  // namespace sluice::transport
