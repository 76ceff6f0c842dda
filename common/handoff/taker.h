// The taker's side of a page move: reserves pages, fetches what is offered into them, and lets
// nothing be attended that it has not checked.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/fault.h"
#include "base/ids.h"
#include "base/loop.h"
#include "base/random.h"
#include "handoff/calls.h"
#include "handoff/guards.h"
#include "handoff/move.h"
#include "handoff/peers.h"
#include "handoff/states.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "sluice/v1/kv.pb.h"
#include "transport/transport.h"

namespace sluice::handoff {

struct TakerOptions {
  Incarnation incarnation;
  // What decides block keys and the range of token ids: the worker's model.
  Id128 model_digest;
  Id128 numerics_id;
  request::TokenId vocabulary = 0;
  int32_t context_tokens = 0;
  absl::Duration lease = absl::Seconds(10);
  // How long a reservation waits for its call, lease or no lease. A router attaches as soon as it
  // has the grant, so that one which has not by then is taken for dead and its pages go; if it was
  // only slow, it loses an attempt.
  absl::Duration attach_wait = absl::Seconds(3);
  // Taken off every lease: clocks drift.
  double drift_margin = 0.01;
  size_t reservations_max = 256;
  // Reads under way at once, over all transfers.
  size_t fetches_max = 64;
  PeerOptions peers;
  Guards guards;
};

// A prompt whose pages are here and verified.
struct LandedSequence {
  CallContext context;
  std::vector<request::TokenId> prompt;
  std::vector<kv::PageLease> pages;  // those of the prompt, then room for growth
  std::optional<request::SampledToken> first;
  uint32_t held_tokens = 0;    // were here before the transfer
  uint32_t cached_tokens = 0;  // the holder had them cached
  uint64_t bytes = 0;
  absl::Duration transfer;  // from the first offered piece to the last verified one
  // The holder computes the same bits as this worker: its blocks may be published under this
  // worker's keys.
  bool same_numerics = false;
};

// Owned by the move loop; not thread-safe.
// Invariants: a reservation has all its pages before anything is offered for it; a page with a read
// under way never returns to the pool before that read has ended; a piece counts only if the lease
// was held when its read had completed.
class HandoffTaker {
 public:
  // `faults` may be null; everything else outlives the taker.
  struct Dependencies {
    kv::PagePool& pool;
    kv::PrefixIndex& index;
    transport::Transport& transport;
    Loop& loop;
    RandomSource& random;
    MoveCounters& counters;
    FaultInjector* faults = nullptr;
  };
  using LandedCallback = absl::AnyInvocable<void(absl::StatusOr<LandedSequence>)>;

  HandoffTaker(const TakerOptions& options, const Dependencies& dependencies);
  // Drops all reservations without calling back; closes connections with reads under way. The loop
  // must have stopped.
  ~HandoffTaker();

  // Takes pages for the prompt and the first growth step, less the blocks that are here already.
  // The lease counts from now. Errors: INVALID_ARGUMENT for an empty prompt, ids outside the
  // vocabulary or a prompt over the context; FAILED_PRECONDITION for another layout (both
  // descriptions in the message) or a holder whose pages were damaged too often;
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<v1::Grant> Reserve(const ReserveCall& call);
  // Calls `landed` once, when the sequence is complete or has failed; at once if that is known.
  // The reservation waits attach_wait for this call, landed or not. Errors passed to `landed`:
  // NOT_FOUND for an unknown lease, ALREADY_EXISTS for a second call, ABORTED (lease over,
  // withdrawn, data refused), UNAVAILABLE (holder gone), CANCELLED (Release).
  void Attach(LeaseId lease, LandedCallback landed);
  // Gives the reservation up. Unknown leases are ignored.
  void Release(LeaseId lease, absl::string_view reason);

  // From the dispatcher.
  void OnOffer(transport::EndpointId from, const v1::Offer& offer,
               absl::Span<const uint8_t> payload);
  void OnCommit(transport::EndpointId from, const v1::Commit& commit);
  void OnRenewAck(transport::EndpointId from, const v1::RenewAck& ack);
  void OnWithdrawn(transport::EndpointId from, const v1::Withdrawn& withdrawn);
  void OnReleasedAck(transport::EndpointId from, const v1::ReleasedAck& ack);
  void OnFetchDone(transport::FetchId fetch, const absl::Status& status);
  void OnPeerDown(transport::EndpointId endpoint, const absl::Status& reason);

  size_t reservations() const { return reservations_.size(); }
  size_t fetches_outstanding() const { return fetches_.size(); }

 private:
  struct Reservation;
  struct Piece;
  // Pages that wait for reads to end. Shared by those reads; the last one gives the pages back.
  struct Quarantined {
    kv::PagePool::Quarantine ticket;
    HandoffTaker& taker;
    uint64_t pages;
    std::list<absl::Time>::iterator since;
    ~Quarantined() { taker.EndQuarantine(*this); }
  };
  // One read under way.
  struct Fetch {
    StateOf<kReadMachine> state;
    LeaseId lease;
    size_t piece = 0;  // index in its reservation
    transport::EndpointId endpoint;
    std::shared_ptr<Quarantined> quarantined;  // set once nobody wants the result
  };
  // A release that is repeated until the holder has acknowledged it.
  struct Releasing {
    StateOf<kReleaseMachine> state;
    Incarnation holder;
    transport::EndpointId endpoint;
    std::string message;
    absl::Time until;
    absl::Duration interval;
    TimerId timer = kNoTimer;
  };

  Reservation* Find(LeaseId lease);
  absl::Time Now() const { return deps_.loop.clock().Now(); }

  // Reservations (taker.cc).
  absl::Status CheckReserve(const ReserveCall& call);
  absl::StatusOr<std::unique_ptr<Reservation>> TakePages(const ReserveCall& call, LeaseId lease);
  v1::Grant MakeGrant(const Reservation& reservation) const;
  void MaybeLand(Reservation& reservation);
  void CountDigestFailure(const Reservation& reservation);
  absl::Status CheckComplete(const Reservation& reservation) const;
  // Bytes of all pages that are not held: every layer of every block, each once.
  uint64_t MoveBytes(const Reservation& reservation) const;
  void Deliver(Reservation& reservation);
  // Ends a reservation that will not be used. `tell`: the holder can be told.
  void Drop(LeaseId lease, const absl::Status& status, bool tell);
  void QuarantineReads(Reservation& reservation);
  void EndQuarantine(const Quarantined& quarantined);
  void PublishQuarantineAge();

  // Leases (taker_lease.cc).
  absl::Duration LeaseSpan() const { return options_.lease * (1.0 - options_.drift_margin); }
  bool LeaseHeld(const Reservation& reservation) const;
  void Lapse(LeaseId lease);
  void ArmLease(Reservation& reservation);
  void ArmRenewal(Reservation& reservation, absl::Time at);
  // Errors: why nothing more is to be expected.
  absl::Status CheckProgress(Reservation& reservation);
  void Renew(Reservation& reservation);
  void SendReleased(const Reservation& reservation, v1::Released::Outcome outcome,
                    absl::string_view reason);
  void RepeatReleased(LeaseId lease);
  void AnswerUnknown(transport::EndpointId from, absl::string_view lease_bytes, LeaseId lease,
                     uint64_t holder);

  // Pieces (taker_pieces.cc).
  template <typename Message>
  Reservation* FindAddressee(transport::EndpointId from, const Message& message);
  absl::Status CheckOffer(const Reservation& reservation, const v1::Offer& offer,
                          absl::Span<const uint8_t> payload) const;
  absl::Status AcceptPiece(Reservation& reservation, const v1::Piece& piece, bool* duplicate);
  absl::Status CheckCommit(const Reservation& reservation, const v1::Commit& commit) const;
  absl::Span<uint8_t> PieceMemory(const Reservation& reservation, const Piece& piece) const;
  void StartFetches();
  // Returns false when the transport takes no more just now.
  bool StartFetch(LeaseId lease, size_t piece);
  // A read has ended. False if the reservation was dropped.
  bool FinishRead(Reservation& reservation, Fetch& fetch, const absl::Status& fetched);
  // A piece's bytes are here. False if the reservation was dropped.
  bool FinishPiece(Reservation& reservation, size_t piece);

  const TakerOptions options_;
  const Dependencies deps_;
  std::list<absl::Time>
      quarantines_;  // when each began, oldest first; outlives the fetches that hold them
  // Ordered: whatever iterates must do so in the same order in every run of a simulation.
  absl::btree_map<LeaseId, std::unique_ptr<Reservation>> reservations_;
  absl::btree_map<transport::FetchId, Fetch> fetches_;
  absl::btree_map<LeaseId, Releasing> releasing_;
  std::deque<std::pair<LeaseId, size_t>> wanted_;  // pieces not yet being read
  TimerId retry_timer_ = kNoTimer;
  Peers peers_;
};

}  // namespace sluice::handoff
