// Listening addresses: parsing, what may be bound, and who is in the way.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::rpc {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
  // "host:port", brackets around IPv6.
  std::string ToString() const;
};

// "127.0.0.1:8081", "[::1]:0", "localhost:80". Errors: INVALID_ARGUMENT with the text and the
// expected form.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// 127.0.0.0/8, ::1 or "localhost".
bool IsLoopback(absl::string_view host);

// What allows a service to listen beyond loopback.
inline constexpr absl::string_view kAllowAnywhere =
    "service.tls, or service.insecure_listen_anywhere: true in a network that you trust";

// May `listen` be bound? Tries it, without keeping it. Errors: INVALID_ARGUMENT for a bad form;
// PERMISSION_DENIED for an address beyond loopback unless `anywhere`, advising to set `allow`;
// ALREADY_EXISTS when the port is taken, naming the process where it can be found.
absl::StatusOr<HostPort> CheckListen(absl::string_view listen, bool anywhere,
                                     absl::string_view allow = kAllowAnywhere);

// "pid 123 (name)" of the process that listens on a TCP port of this host, or empty. `proc` is
// where procfs is mounted.
std::string PortHolder(uint16_t port, const std::string& proc = "/proc");

}  // namespace sluice::rpc
