#include "handoff/taker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "handoff/taker_reservation.h"
#include "kv/block_key.h"

namespace sluice::handoff {

HandoffTaker::HandoffTaker(const TakerOptions& options, const Dependencies& dependencies)
    : options_(options), deps_(dependencies), peers_(options.peers, dependencies.counters) {}

HandoffTaker::~HandoffTaker() {
  for (const auto& [id, fetch] : fetches_) deps_.transport.Close(fetch.endpoint);
}

HandoffTaker::Reservation* HandoffTaker::Find(LeaseId lease) {
  const auto found = reservations_.find(lease);
  return found == reservations_.end() ? nullptr : found->second.get();
}

absl::Status HandoffTaker::CheckReserve(const ReserveCall& call) {
  const kv::PageLayout& layout = deps_.pool.layout();
  if (call.holder_layout_hash != layout.hash()) {
    return absl::FailedPreconditionError(absl::StrCat("page layouts differ: the holder has {",
                                                      call.holder_layout, "}, this taker has {",
                                                      layout.Describe(), "}"));
  }
  if (call.prompt.empty()) return absl::InvalidArgumentError("reserve: the prompt is empty");
  if (call.prompt.size() + call.emitted_tokens > static_cast<size_t>(options_.context_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reserve: ", call.prompt.size(), " prompt tokens and ", call.emitted_tokens,
                     " emitted ones exceed the context of ", options_.context_tokens));
  }
  for (request::TokenId token : call.prompt) {
    if (token < 0 || token >= options_.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(
          "reserve: token ", token, " is not in the vocabulary of ", options_.vocabulary));
    }
  }
  if (call.context.deadline <= Now())
    return absl::DeadlineExceededError("reserve: the deadline has passed");
  if (reservations_.size() >= options_.reservations_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.reservations_max, " reservations are in use"));
  }
  return peers_.MayTake(call.holder, Now());
}

absl::StatusOr<std::unique_ptr<HandoffTaker::Reservation>> HandoffTaker::TakePages(
    const ReserveCall& call, LeaseId lease) {
  const kv::PageLayout& layout = deps_.pool.layout();
  const uint32_t prompt_tokens = static_cast<uint32_t>(call.prompt.size());
  auto reservation = std::make_unique<Reservation>();
  reservation->lease = lease;
  reservation->context = call.context;
  reservation->prompt = call.prompt;
  reservation->holder = call.holder;
  reservation->same_numerics = call.holder_numerics_id == options_.numerics_id;
  reservation->prompt_blocks = layout.PagesFor(prompt_tokens);
  // Blocks that are here were made by this worker's numerics; a holder of others would not have
  // computed the same bytes.
  if (call.context.domain.has_value() && reservation->same_numerics) {
    const kv::KeyContext keys{options_.model_digest, options_.numerics_id, layout.hash(), ""};
    reservation->pages = deps_.index.Find(
        kv::BlockKeys(*call.context.domain, keys, call.prompt, layout.page_tokens()));
    if (reservation->pages.size() > reservation->prompt_blocks)
      reservation->pages.resize(reservation->prompt_blocks);
  }
  reservation->held_blocks = static_cast<uint32_t>(reservation->pages.size());
  // The first growth step: what the client has already, and a page's worth of new tokens.
  const uint64_t tokens =
      std::min<uint64_t>(static_cast<uint64_t>(prompt_tokens) + call.emitted_tokens +
                             std::min(call.max_tokens, layout.page_tokens()),
                         static_cast<uint64_t>(options_.context_tokens));
  const size_t pages =
      std::max(layout.PagesFor(static_cast<uint32_t>(tokens)), reservation->prompt_blocks);
  SLUICE_ASSIGN_OR_RETURN(
      std::vector<kv::PageLease> fresh,
      deps_.pool.Allocate(pages - reservation->held_blocks, lease.value(), call.context.tenant));
  for (kv::PageLease& page : fresh) reservation->pages.push_back(std::move(page));
  reservation->covered.resize(size_t{reservation->prompt_blocks} * layout.spec().layers);
  reservation->behind.resize(reservation->prompt_blocks);
  return reservation;
}

v1::Grant HandoffTaker::MakeGrant(const Reservation& reservation) const {
  const kv::PageLayout& layout = deps_.pool.layout();
  v1::Grant grant;
  grant.set_request_id(reservation.context.request.value());
  grant.set_attempt(reservation.context.attempt);
  grant.set_lease_id(reservation.lease.value().ToBytes());
  grant.set_taker_incarnation(options_.incarnation.value());
  grant.set_holder_incarnation(reservation.holder.value());
  grant.set_layout_hash(layout.hash().ToBytes());
  *grant.mutable_layout() = ToProto(layout);
  grant.mutable_held()->set_blocks(reservation.held_blocks);
  grant.set_choices(1);
  grant.set_tokens_max(static_cast<uint32_t>(reservation.prompt.size()));
  grant.set_pages_max(reservation.prompt_blocks);
  grant.set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease)));
  v1::TransportAddress* address = grant.add_addresses();
  address->set_backend(deps_.transport.capabilities().name);
  address->set_address(deps_.transport.LocalAddress());
  const absl::Duration left = std::min(reservation.context.deadline - Now(), absl::Hours(24));
  grant.set_deadline_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(left)));
  return grant;
}

absl::StatusOr<v1::Grant> HandoffTaker::Reserve(const ReserveCall& call) {
  const absl::Time sent = Now();
  SLUICE_RETURN_IF_ERROR(CheckReserve(call));
  SLUICE_RETURN_IF_ERROR(SLUICE_FAULT(deps_.faults, "handoff.grant"));
  const LeaseId lease(deps_.random.NextId128());
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Reservation> taken, TakePages(call, lease));
  Reservation& reservation = *taken;
  SLUICE_RETURN_IF_ERROR(reservation.state.ChangeTo(ReservationState::kReserved, deps_.faults));
  reservations_[lease] = std::move(taken);
  reservation.deadline = sent + LeaseSpan();
  reservation.attach_by = sent + options_.attach_wait;
  ArmLease(reservation);
  ArmRenewal(reservation, sent + options_.lease / 2);
  return MakeGrant(reservation);
}

void HandoffTaker::Attach(LeaseId lease, LandedCallback landed) {
  Reservation* reservation = Find(lease);
  if (reservation == nullptr) {
    return landed(
        absl::NotFoundError(absl::StrCat("no reservation for lease ", lease.value().ToHex(),
                                         ": it was released, failed or has expired")));
  }
  if (reservation->on_landed) {
    return landed(absl::AlreadyExistsError(
        absl::StrCat("another call waits for lease ", lease.value().ToHex())));
  }
  reservation->on_landed = std::move(landed);
  if (reservation->landed()) Deliver(*reservation);
}

void HandoffTaker::Release(LeaseId lease, absl::string_view reason) {
  if (Find(lease) != nullptr) Drop(lease, absl::CancelledError(reason), /*tell=*/true);
}

absl::Status HandoffTaker::CheckComplete(const Reservation& reservation) const {
  const v1::Commit& commit = *reservation.commit;
  if (options_.guards.On(Guard::kCommitCounts) && commit.pieces() != reservation.pieces_done) {
    return absl::AbortedError(absl::StrCat("commit of ", commit.pieces(), " pieces, but ",
                                           reservation.pieces_done, " make up the prompt"));
  }
  std::vector<const Piece*> ordered;
  for (const Piece& piece : reservation.pieces) ordered.push_back(&piece);
  std::sort(ordered.begin(), ordered.end(), [](const Piece* a, const Piece* b) {
    return std::make_pair(a->block, a->layer_begin) < std::make_pair(b->block, b->layer_begin);
  });
  std::vector<uint64_t> digests;
  for (const Piece* piece : ordered) digests.push_back(piece->digest);
  if (CommitDigest(digests) == commit.digest() || !options_.guards.On(Guard::kDigests))
    return absl::OkStatus();
  return absl::DataLossError("the commit's digest differs from that of the pieces");
}

// Accepted pieces do not overlap, so all bytes are there exactly when every layer of every block
// is. The commit may come first.
void HandoffTaker::MaybeLand(Reservation& reservation) {
  const LeaseId lease = reservation.lease;
  if (!reservation.commit.has_value()) return;
  if (options_.guards.On(Guard::kCommitCounts) && reservation.bytes_done < MoveBytes(reservation))
    return;
  if (options_.guards.On(Guard::kCheckAfterFetch) && !LeaseHeld(reservation)) return Lapse(lease);
  absl::Status status = CheckComplete(reservation);
  if (absl::IsDataLoss(status)) CountDigestFailure(reservation);
  if (absl::IsAborted(status)) ++deps_.counters.invalid_messages;
  if (status.ok()) status = SLUICE_FAULT(deps_.faults, "handoff.landed");
  if (status.ok()) status = reservation.state.ChangeTo(ReservationState::kLanded, deps_.faults);
  if (!status.ok()) return Drop(lease, absl::AbortedError(status.message()), /*tell=*/true);

  if (reservation.pieces_done > 0) reservation.transfer = Now() - reservation.first_piece_at;
  ++deps_.counters.transfers_completed;
  deps_.counters.bytes_received += reservation.bytes_done;
  deps_.counters.pieces_received += reservation.pieces_done;
  deps_.loop.Cancel(reservation.renew_timer);
  SendReleased(reservation, v1::Released::OUTCOME_FETCHED, "");
  if (reservation.on_landed) return Deliver(reservation);
  deps_.loop.Cancel(reservation.lease_timer);
  ArmLease(reservation);
}

void HandoffTaker::CountDigestFailure(const Reservation& reservation) {
  ++deps_.counters.digest_failures;
  peers_.OnDigestFailure(reservation.holder, Now());
}

uint64_t HandoffTaker::MoveBytes(const Reservation& reservation) const {
  const kv::PageLayout& layout = deps_.pool.layout();
  return uint64_t{reservation.prompt_blocks - reservation.held_blocks} *
         layout.PieceRange(0, layout.spec().layers).bytes;
}

void HandoffTaker::Deliver(Reservation& reservation) {
  const absl::Status status =
      reservation.state.ChangeTo(ReservationState::kDelivered, deps_.faults);
  if (!status.ok()) {
    return Drop(reservation.lease, absl::AbortedError(status.message()), /*tell=*/false);
  }
  LandedSequence landed;
  landed.context = std::move(reservation.context);
  landed.prompt = std::move(reservation.prompt);
  landed.pages = std::move(reservation.pages);
  landed.first = std::move(reservation.first);
  landed.held_tokens =
      std::min<uint32_t>(reservation.held_blocks * deps_.pool.layout().page_tokens(),
                         static_cast<uint32_t>(landed.prompt.size()));
  landed.cached_tokens = reservation.commit->cached_tokens();
  landed.bytes = reservation.bytes_done;
  landed.transfer = reservation.transfer;
  landed.same_numerics = reservation.same_numerics;
  LandedCallback callback = std::move(reservation.on_landed);
  deps_.loop.Cancel(reservation.lease_timer);
  deps_.loop.Cancel(reservation.renew_timer);
  reservations_.erase(reservation.lease);
  callback(std::move(landed));
}

void HandoffTaker::Drop(LeaseId lease, const absl::Status& status, bool tell) {
  const auto found = reservations_.find(lease);
  SLUICE_CHECK(found != reservations_.end());
  const std::unique_ptr<Reservation> reservation = std::move(found->second);
  reservations_.erase(found);
  deps_.loop.Cancel(reservation->lease_timer);
  deps_.loop.Cancel(reservation->renew_timer);
  if (reservation->endpoint.has_value() && !reservation->landed()) {
    ++deps_.counters.transfers_failed;
    if (tell) SendReleased(*reservation, v1::Released::OUTCOME_ABANDONED, status.message());
  }
  reservation->state.MustChangeTo(ReservationState::kDropped, deps_.faults);
  if (reservation->reads > 0 && options_.guards.On(Guard::kHoldWhileFetching))
    QuarantineReads(*reservation);
  reservation->pages.clear();
  if (reservation->on_landed) reservation->on_landed(status);
}

// Only pages with a read under way are held back; a read that never ends is ended by closing its
// connection.
void HandoffTaker::QuarantineReads(Reservation& reservation) {
  std::vector<Fetch*> reads;
  std::vector<kv::PageLease> pages;
  for (auto& [id, fetch] : fetches_) {
    if (fetch.lease != reservation.lease) continue;
    reads.push_back(&fetch);
    kv::PageLease& page = reservation.pages[reservation.pieces[fetch.piece].block];
    if (page.valid()) pages.push_back(std::move(page));
  }
  const uint64_t count = pages.size();
  deps_.counters.quarantined_now += count;
  const std::shared_ptr<Quarantined> quarantined(
      new Quarantined{deps_.pool.QuarantinePages(std::move(pages)), *this, count,
                      quarantines_.insert(quarantines_.end(), Now())});
  PublishQuarantineAge();
  for (Fetch* fetch : reads) {
    fetch->state.MustChangeTo(ReadState::kQuarantined, deps_.faults);
    fetch->quarantined = quarantined;
  }
  deps_.loop.RunAt(Now() + options_.lease, [this, held = std::weak_ptr<Quarantined>(quarantined),
                                            endpoint = *reservation.endpoint] {
    if (!held.expired()) deps_.transport.Close(endpoint);
  });
}

void HandoffTaker::EndQuarantine(const Quarantined& quarantined) {
  deps_.counters.quarantined_now -= quarantined.pages;
  quarantines_.erase(quarantined.since);
  PublishQuarantineAge();
}

void HandoffTaker::PublishQuarantineAge() {
  deps_.counters.quarantined_since_ns.Set(
      quarantines_.empty() ? 0 : static_cast<uint64_t>(absl::ToUnixNanos(quarantines_.front())));
}

void HandoffTaker::OnPeerDown(transport::EndpointId endpoint, const absl::Status& reason) {
  std::vector<LeaseId> hit;
  for (const auto& [lease, reservation] : reservations_) {
    if (reservation->endpoint == endpoint && !reservation->landed()) hit.push_back(lease);
  }
  for (LeaseId lease : hit) {
    Drop(lease,
         absl::UnavailableError(absl::StrCat("the holder's connection ended: ", reason.message())),
         /*tell=*/false);
  }
  for (auto it = releasing_.begin(); it != releasing_.end();) {
    if (it->second.endpoint != endpoint) {
      ++it;
      continue;
    }
    it->second.state.MustChangeTo(ReleaseState::kGivenUp, deps_.faults);
    deps_.loop.Cancel(it->second.timer);
    it = releasing_.erase(it);
  }
}

}  // namespace sluice::handoff
