// The holder's side of a page move: offers final pages and keeps them in place until nobody reads
// them any more.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/fault.h"
#include "base/ids.h"
#include "base/loop.h"
#include "engine/engine.h"
#include "handoff/guards.h"
#include "handoff/move.h"
#include "handoff/peers.h"
#include "kv/page_pool.h"
#include "sluice/v1/kv.pb.h"
#include "transport/transport.h"

namespace sluice::handoff {

struct SourceOptions {
  Incarnation incarnation;
  DigestMode digests = DigestMode::kFull;
  // Transfers at once, those that only wait for their lease to end included.
  size_t transfers_max = 256;
  // Served lease ids that are remembered. One that was forgotten does no harm: its taker has long
  // dropped the reservation and refuses every offer for it.
  size_t served_max = 65536;
  // Longest lease that a grant or a renewal gets, and longest time after the commit in which
  // renewals are granted.
  absl::Duration lease_max = absl::Minutes(1);
  PeerOptions peers;
  Guards guards;
};

class SourceEvents {
 public:
  virtual ~SourceEvents() = default;
  // The transfer has ended; once for every Open that was not withdrawn before. OK: the taker has
  // fetched and verified `bytes` bytes. ABORTED: the taker gave up, or the lease expired.
  // UNAVAILABLE: the connection is gone. Pages may stay pinned after an error until the lease is
  // over, because a read may still run.
  virtual void OnSourceEnded(LeaseId lease, const absl::Status& status, uint64_t bytes) = 0;
};

// Owned by the move loop; not thread-safe.
// Invariant: a page that was offered stays pinned until the taker's Released arrives or the lease,
// counted from the receipt of the grant or of the last renewal, is over. Nothing else ends a pin: a
// broken connection does not prove that nobody reads.
class HandoffSource {
 public:
  // `faults` may be null; everything else outlives the source.
  struct Dependencies {
    kv::PagePool& pool;
    transport::Transport& transport;
    std::string pool_remote_key;
    Loop& loop;
    SourceEvents& events;
    MoveCounters& counters;
    FaultInjector* faults = nullptr;
  };
  HandoffSource(const SourceOptions& options, const Dependencies& dependencies);
  // Drops all pins without an event. The loop must have stopped.
  ~HandoffSource();

  // Accepts a grant for a prompt of `prompt_tokens` tokens, connects, and tells the taker where its
  // renewals go. Errors, without an event: INVALID_ARGUMENT for a malformed grant;
  // FAILED_PRECONDITION for another layout (both descriptions in the message), another incarnation,
  // no common transport or too small a grant; ALREADY_EXISTS for a lease id that was served before;
  // UNAVAILABLE for a taker that cannot be reached; RESOURCE_EXHAUSTED.
  absl::Status Open(const v1::Grant& grant, uint32_t prompt_tokens);
  // Layers [layer_begin, layer_end) of these pages are final. Takes the pins. Unknown leases are
  // ignored (the transfer ended).
  void Offer(LeaseId lease, std::vector<engine::FinalPage> pages, int layer_begin, int layer_end);
  // Everything was offered. `first` is empty when nothing was sampled.
  void Commit(LeaseId lease, uint32_t tokens, const std::optional<request::SampledToken>& first,
              uint32_t cached_tokens);
  // The transfer will not complete; no event follows. Pages that a taker may be reading stay
  // pinned. Idempotent.
  void Withdraw(LeaseId lease, absl::string_view reason);

  // From the dispatcher. `from` is where the answer goes.
  void OnRenew(transport::EndpointId from, const v1::Renew& renew);
  void OnReleased(transport::EndpointId from, const v1::Released& released);
  void OnPeerDown(transport::EndpointId endpoint, const absl::Status& reason);

  size_t transfers() const { return transfers_.size(); }

 private:
  struct Transfer;

  Transfer* Find(LeaseId lease);
  Transfer* FindReleased(transport::EndpointId from, LeaseId lease);
  absl::Status CheckGrant(const v1::Grant& grant, uint32_t prompt_tokens, LeaseId* lease) const;
  absl::Status CheckOpen(const v1::Grant& grant, uint32_t prompt_tokens, LeaseId* lease);
  absl::StatusOr<transport::EndpointId> ConnectTaker(const v1::Grant& grant);
  void Remember(LeaseId lease);
  absl::Status QueuePieces(Transfer& transfer, const engine::FinalPage& page, uint32_t layer_begin,
                           uint32_t layer_end);
  void Enqueue(Transfer& transfer, v1::Piece piece);
  void Flush(Transfer& transfer);
  absl::Status SendOffer(Transfer& transfer);
  absl::Status SendCommit(Transfer& transfer);
  void SendWithdrawn(Transfer& transfer, absl::string_view reason);
  void SendReleasedAck(transport::EndpointId to, const v1::Released& released);
  void ArmExpiry(Transfer& transfer);
  // Ends the transfer for the worker, if it has not ended. `release`: nobody reads its pages any
  // more.
  void End(LeaseId lease, const absl::Status& status, bool release);
  // What is left of an ended transfer: nothing, or pins that wait for its lease to end.
  void Close(Transfer& transfer, bool release);
  void PublishPinAge();

  const SourceOptions options_;
  const Dependencies deps_;
  const std::string own_address_;
  // Ordered: whatever iterates must do so in the same order in every run of a simulation.
  absl::btree_map<LeaseId, std::unique_ptr<Transfer>> transfers_;
  std::list<absl::Time> pins_since_;  // of each transfer with offered pages, oldest first
  absl::flat_hash_set<LeaseId> served_;
  std::deque<LeaseId> served_order_;
  Peers peers_;
};

}  // namespace sluice::handoff
