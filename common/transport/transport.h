// The verbs of moving bytes between workers. Only reads: nobody can write into another process's
// memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"

namespace sluice::transport {

// A connection to one peer as seen from here; never reused within a transport.
using EndpointId = StrongId<struct EndpointIdTag, uint64_t>;
using FetchId = StrongId<struct FetchIdTag, uint64_t>;

// Bounds of one transport. Beyond one of them a call answers RESOURCE_EXHAUSTED and changes
// nothing.
struct Limits {
  // Header and payload together; the two ends of a connection must agree.
  size_t message_bytes_max = 16u << 20;
  // Sent and not yet taken by the network, per endpoint.
  size_t send_queue_messages_max = 1024;
  size_t send_queue_bytes_max = 64u << 20;
  size_t endpoints_max = 1024;
  size_t fetches_max = 4096;
  size_t regions_max = 64;
};

inline constexpr size_t kAddressBytesMax = 4096;
inline constexpr size_t kRemoteKeyBytesMax = 1024;

// Why a connection or a message from the network was refused.
enum class Refusal {
  kUnauthenticated,  // no certificate of ours, or no TLS at all
  kForbidden,        // a certificate whose role may not move pages
  kMalformed,        // not our protocol, or too large
  kTimeout,          // silent instead of introducing itself
  kCrowded,          // no room for another
  kLeft,             // closed before it had introduced itself
};
inline constexpr std::array<Refusal, 6> kRefusals = {Refusal::kUnauthenticated, Refusal::kForbidden,
                                                     Refusal::kMalformed,       Refusal::kTimeout,
                                                     Refusal::kCrowded,         Refusal::kLeft};

// Label of metrics.
constexpr absl::string_view RefusalName(Refusal refusal) {
  constexpr std::array<absl::string_view, kRefusals.size()> kNames = {
      "unauthenticated", "forbidden", "malformed", "timeout", "crowded", "left"};
  return kNames[static_cast<size_t>(refusal)];
}

struct Capabilities {
  std::string name;  // label of metrics: "loopback", "ucx-shm", "ucx-tcp", "tls"
  // Fetch works: the backend reads remote memory by itself. Otherwise offers carry their bytes
  // (Send with a payload).
  bool true_get = false;
  size_t message_bytes_max = 0;
};

// Memory that peers may read (never write). Owned by the transport that made it, released with it.
struct Region {
  absl::Span<uint8_t> memory;
  std::string remote_key;  // opaque, at most kRemoteKeyBytesMax; a peer needs it to Fetch
};

// What happened since the last Poll. Called inside Poll, on the loop that owns the transport; may
// call the transport again.
class Events {
 public:
  virtual ~Events() = default;
  // `from` may be new: a peer that connected. `header` and `payload` are valid during the call
  // only. Hostile until checked.
  virtual void OnMessage(EndpointId from, absl::string_view header,
                         absl::Span<const uint8_t> payload) = 0;
  // The read has ended; with an error the local memory holds unspecified bytes. Exactly once per
  // Fetch.
  virtual void OnFetchDone(FetchId fetch, const absl::Status& status) = 0;
  // The peer is gone. All its fetches have been reported before. The id is dead, nothing follows
  // for it.
  virtual void OnPeerDown(EndpointId endpoint, const absl::Status& reason) = 0;
};

// Owned by one loop; not thread-safe. Nothing blocks. A transport that is destroyed reports nothing
// more.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual const Capabilities& capabilities() const = 0;
  // Where others connect to; opaque, at most kAddressBytesMax.
  virtual std::string LocalAddress() const = 0;

  // Memory from the backend (shared memory must be), remote-readable, zeroed, aligned to 64 bytes
  // or better.
  virtual absl::StatusOr<Region> AllocateRegion(size_t bytes) = 0;

  // Connects, or returns the endpoint that exists for this address. Failures of the peer arrive as
  // OnPeerDown. Errors: INVALID_ARGUMENT for bytes that are no address of this backend, or one's
  // own address; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<EndpointId> Connect(absl::string_view address) = 0;

  // Queues header and payload, in order per endpoint; both are copied or sent before it returns.
  // Errors: NOT_FOUND for a dead endpoint, RESOURCE_EXHAUSTED when its queue is full,
  // INVALID_ARGUMENT when too large.
  virtual absl::Status Send(EndpointId to, absl::string_view header,
                            absl::Span<const uint8_t> payload) = 0;

  // Starts reading `local.size()` bytes at `offset` of the peer's region into `local`, which must
  // stay untouched until OnFetchDone. Errors: UNIMPLEMENTED without true_get; NOT_FOUND;
  // INVALID_ARGUMENT for a bad key, OUT_OF_RANGE beyond the region; RESOURCE_EXHAUSTED. No
  // OnFetchDone follows an error.
  virtual absl::StatusOr<FetchId> Fetch(EndpointId from, absl::string_view remote_key,
                                        uint64_t offset, absl::Span<uint8_t> local) = 0;

  // Ends a connection: the next Polls report its fetches, then OnPeerDown. Messages still queued
  // may be lost. Idempotent.
  virtual void Close(EndpointId endpoint) = 0;

  // How much was refused since the start. Thread-safe.
  virtual uint64_t refused(Refusal /*reason*/) const { return 0; }

  // Handles everything that is ready. Returns true if there was something.
  virtual bool Poll(Events& events) = 0;
  // A descriptor that is readable when Poll may have work, or -1 (the simulation calls Poll by
  // itself).
  virtual int EventFd() const = 0;
  // Arms EventFd. Returns false if the loop must Poll again instead of sleeping, whatever Poll then
  // returns. With a ThreadLoop:
  //   loop.WatchReadable(t.EventFd(), [&] { t.Poll(events); });
  //   loop.SetBeforeSleep([&] { if (t.PrepareSleep()) return false; t.Poll(events); return true;
  //   });
  virtual bool PrepareSleep() = 0;
};

// What every backend's Send refuses. `bytes`: header and payload of a message for an endpoint that
// has `queued_messages` of `queued_bytes` waiting. A message larger than the queue's bytes may go
// alone. Errors: INVALID_ARGUMENT for a message over the limit, RESOURCE_EXHAUSTED for a full
// queue.
absl::Status CheckSend(const Limits& limits, EndpointId to, size_t bytes, size_t queued_messages,
                       size_t queued_bytes);

}  // namespace sluice::transport
