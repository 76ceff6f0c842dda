// What peers of the tls backend tell each other. The bytes travel inside TLS, so nobody on the way
// can change them; a peer may still send anything.
//
//   frame   kind u32, header_bytes u32, payload_bytes u64; then header, then payload
//   hello   the header of the first frame of either end
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"

namespace sluice::transport {

struct TlsAddress {
  Id128 transport;   // random, one per transport
  std::string host;  // an IPv4 or IPv6 address; names would have to be looked up
  uint16_t port = 0;
  std::string identity;  // the URI of the certificate that answers there

  std::string Encode() const;
  // Errors: INVALID_ARGUMENT.
  static absl::StatusOr<TlsAddress> Decode(absl::string_view bytes);
};

struct TlsHello {
  Id128 sender;
  Id128 receiver;      // whom the dialer means; an answer repeats the dialer
  uint64_t epoch = 0;  // of the sender's end, grows with every connection that it makes
  uint64_t message_bytes_max = 0;

  std::string Encode() const;
  // Errors: INVALID_ARGUMENT.
  static absl::StatusOr<TlsHello> Decode(absl::string_view bytes);
};

struct TlsFrame {
  enum class Kind : uint32_t {
    kHello = 1,    // header: TlsHello; from the dialer, and back from who accepts
    kYield = 2,    // both ends dialed, and the other connection stays
    kRefused = 3,  // header: why, for people
    kData = 4,
  };
  static constexpr size_t kBytes = 16;

  Kind kind = Kind::kData;
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;

  size_t body_bytes() const { return header_bytes + payload_bytes; }
  std::array<uint8_t, kBytes> Encode() const;
  // Errors: INVALID_ARGUMENT for an unknown kind or a body over `body_bytes_max`.
  static absl::StatusOr<TlsFrame> Decode(const std::array<uint8_t, kBytes>& bytes,
                                         size_t body_bytes_max);
};

// The most that a peer may send before its hello was accepted.
inline constexpr size_t kTlsHelloBytesMax = 1024;

}  // namespace sluice::transport
