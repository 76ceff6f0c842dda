// What UCX peers tell each other: addresses, keys, and the prefix of every message. UCX itself
// trusts the bytes it is given, so they travel in an envelope of ours that random or truncated
// bytes do not pass. It guards against mistakes, not against malice: the network must be trusted.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"

namespace sluice::transport {

struct UcxAddress {
  std::string backend;  // "ucx-shm": addresses of another backend are refused
  Id128 transport;      // random, one per transport
  std::string worker_address;

  std::string Encode() const;
  // Errors: INVALID_ARGUMENT.
  static absl::StatusOr<UcxAddress> Decode(absl::string_view bytes);
};

struct UcxKey {
  Id128 transport;
  uint64_t base = 0;  // address of the region in its owner's process
  uint64_t bytes = 0;
  std::string rkey;

  std::string Encode() const;
  // Errors: INVALID_ARGUMENT.
  static absl::StatusOr<UcxKey> Decode(absl::string_view bytes);
};

// The active-message header. A connection has an epoch at each end; both together tell its messages
// from those of an earlier connection between the same transports.
struct UcxPrefix {
  enum class Kind : uint32_t { kHello = 1, kData = 2, kBye = 3 };
  Kind kind = Kind::kHello;
  Id128 sender;
  uint64_t epoch = 0;         // of the sender's end, grows with every connection that it makes
  uint64_t to_epoch = 0;      // of the receiver's end, 0 while the sender does not know it
  uint64_t sequence = 0;      // kData: counts from 0
  uint32_t header_bytes = 0;  // kData: where the header ends and the payload begins
  std::string address;        // the sender's, until it has heard from the receiver

  std::string Encode() const;
  // Errors: INVALID_ARGUMENT.
  static absl::StatusOr<UcxPrefix> Decode(absl::string_view bytes);
};

}  // namespace sluice::transport
