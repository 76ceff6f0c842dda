// What holders send: offers and commits, checked field by field, and the reads that follow. Every
// message may be stale, repeated or a lie; none reaches a CHECK.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "handoff/taker.h"
#include "handoff/taker_reservation.h"

namespace sluice::handoff {
namespace {

constexpr size_t kRemoteKeyMax = transport::kRemoteKeyBytesMax;
// How long to wait for a read of another user of the transport to end, when none of ours will.
constexpr absl::Duration kFetchRetryDelay = absl::Milliseconds(1);

}  // namespace

// The reservation a message is for, or null after counting why there is none. A lease belongs to
// the connection that used it first.
template <typename Message>
HandoffTaker::Reservation* HandoffTaker::FindAddressee(transport::EndpointId from,
                                                       const Message& message) {
  LeaseId lease;
  if (!ParseLease(message.lease_id(), &lease)) {
    ++deps_.counters.invalid_messages;
    return nullptr;
  }
  if (!options_.guards.Match(Incarnation(message.taker_incarnation()), options_.incarnation)) {
    ++deps_.counters.stale_messages;
    return nullptr;
  }
  Reservation* reservation = Find(lease);
  if (reservation == nullptr) {
    ++deps_.counters.stale_messages;
    AnswerUnknown(from, message.lease_id(), lease, message.holder_incarnation());
    return nullptr;
  }
  if (!options_.guards.Match(Incarnation(message.holder_incarnation()), reservation->holder) ||
      !options_.guards.SameAttempt(message.attempt(), reservation->context.attempt) ||
      (reservation->endpoint.has_value() && reservation->endpoint != from)) {
    ++deps_.counters.stale_messages;
    return nullptr;
  }
  if (reservation->landed()) {
    ++deps_.counters.duplicate_messages;
    return nullptr;
  }
  if (!LeaseHeld(*reservation)) {
    Lapse(lease);
    return nullptr;
  }
  if (!reservation->endpoint.has_value()) {
    // Refused: the message is as good as lost.
    if (!reservation->state.ChangeTo(ReservationState::kCalled, deps_.faults).ok()) return nullptr;
    reservation->endpoint = from;
    if (!options_.guards.On(Guard::kCountFromSending)) reservation->deadline = Now() + LeaseSpan();
  }
  return reservation;
}

absl::Status HandoffTaker::CheckOffer(const Reservation& reservation, const v1::Offer& offer,
                                      absl::Span<const uint8_t> payload) const {
  const uint64_t pieces_max = reservation.covered.size();
  if (offer.pieces_size() > kOfferPiecesMax || offer.sequence() > pieces_max) {
    return absl::InvalidArgumentError(absl::StrCat("offer ", offer.sequence(), " of ",
                                                   offer.pieces_size(), " pieces; at most ",
                                                   pieces_max, " offers of ", kOfferPiecesMax));
  }
  uint64_t bytes = 0;
  for (const v1::Piece& piece : offer.pieces()) bytes += piece.bytes();
  if (offer.inline_payload() ? bytes == 0 || bytes != payload.size() : !payload.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("offer of ", bytes, " bytes carries ", payload.size()));
  }
  const bool reads = !offer.inline_payload() && !offer.pieces().empty();
  if (reads && !deps_.transport.capabilities().true_get) {
    return absl::InvalidArgumentError("offer to fetch, but this transport cannot");
  }
  const bool another =
      !reservation.remote_key.empty() && reservation.remote_key != offer.remote_key();
  if (offer.remote_key().size() > kRemoteKeyMax ||
      (reads && (offer.remote_key().empty() || another))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offer with a remote key of ", offer.remote_key().size(), " bytes, or not the lease's"));
  }
  return absl::OkStatus();
}

void HandoffTaker::OnOffer(transport::EndpointId from, const v1::Offer& offer,
                           absl::Span<const uint8_t> payload) {
  Reservation* reservation = FindAddressee(from, offer);
  if (reservation == nullptr) return;
  if (!SLUICE_FAULT(deps_.faults, "handoff.offer_received").ok()) return;
  if (reservation->offers_seen.contains(offer.sequence())) {
    ++deps_.counters.duplicate_messages;
    return;
  }
  const LeaseId lease = reservation->lease;
  absl::Status status = CheckOffer(*reservation, offer, payload);
  if (status.ok()) {
    reservation->offers_seen.insert(offer.sequence());
    reservation->remote_key =
        offer.remote_key().empty() ? reservation->remote_key : offer.remote_key();
  }
  if (status.ok() && reservation->pieces.empty() && !offer.pieces().empty()) {
    reservation->first_piece_at = Now();
    status = reservation->state.ChangeTo(ReservationState::kArriving, deps_.faults);
  }
  size_t at = 0;
  std::vector<size_t> arrived;
  for (int i = 0; i < offer.pieces_size() && status.ok(); ++i) {
    const v1::Piece& piece = offer.pieces(i);
    bool duplicate = false;
    status = AcceptPiece(*reservation, piece, &duplicate);
    if (status.ok() && duplicate) {
      ++deps_.counters.duplicate_messages;
    } else if (status.ok() && offer.inline_payload()) {
      arrived.push_back(reservation->pieces.size() - 1);
      const absl::Span<uint8_t> memory = PieceMemory(*reservation, reservation->pieces.back());
      memcpy(memory.data(), payload.data() + at, memory.size());
    } else if (status.ok()) {
      wanted_.emplace_back(lease, reservation->pieces.size() - 1);
    }
    at += piece.bytes();
  }
  if (!status.ok()) {
    ++(absl::IsAborted(status) ? deps_.counters.stale_messages : deps_.counters.invalid_messages);
    return Drop(lease, absl::AbortedError(absl::StrCat("refused: ", status.message())),
                /*tell=*/true);
  }
  for (size_t piece : arrived) {
    if (!FinishPiece(*reservation, piece)) return;
  }
  MaybeLand(*reservation);
  StartFetches();
}

absl::Status HandoffTaker::AcceptPiece(Reservation& reservation, const v1::Piece& piece,
                                       bool* duplicate) {
  const kv::PageLayout& layout = deps_.pool.layout();
  const uint32_t layers = layout.spec().layers;
  if (piece.block() < reservation.held_blocks || piece.block() >= reservation.prompt_blocks ||
      piece.layer_begin() >= piece.layer_end() || piece.layer_end() > layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece of block ", piece.block(), ", layers ", piece.layer_begin(), "..",
                     piece.layer_end(), "; the lease is for blocks ", reservation.held_blocks, "..",
                     reservation.prompt_blocks, " of ", layers, " layers"));
  }
  const kv::ByteRange range = layout.PieceRange(piece.layer_begin(), piece.layer_end());
  // Both sides have the same layout, so the holder's offset follows from its page.
  const uint64_t offset = uint64_t{piece.page()} * layout.page_bytes() + range.offset;
  if (piece.bytes() != range.bytes || piece.offset() != offset || piece.generation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece of ", piece.bytes(), " bytes at ", piece.offset(), ", generation ",
                     piece.generation(), "; its layers have ", range.bytes, " at ", offset));
  }
  std::optional<Reservation::HolderPage>& behind = reservation.behind[piece.block()];
  if (behind.has_value() && options_.guards.On(Guard::kGeneration) &&
      (behind->page != piece.page() || behind->generation != piece.generation())) {
    return absl::AbortedError(absl::StrCat(
        "block ", piece.block(), " was offered as page ", behind->page, " of generation ",
        behind->generation, ", now as page ", piece.page(), " of generation ", piece.generation()));
  }
  const auto first =
      reservation.covered.begin() + static_cast<ptrdiff_t>(size_t{piece.block()} * layers);
  const auto count = std::count(first + piece.layer_begin(), first + piece.layer_end(), true);
  *duplicate = count == static_cast<ptrdiff_t>(piece.layer_end() - piece.layer_begin());
  if (*duplicate) return absl::OkStatus();
  if (count != 0) {
    return absl::InvalidArgumentError(absl::StrCat("piece of block ", piece.block(), ", layers ",
                                                   piece.layer_begin(), "..", piece.layer_end(),
                                                   " overlaps one that was offered before"));
  }
  std::fill(first + piece.layer_begin(), first + piece.layer_end(), true);
  behind = Reservation::HolderPage{piece.page(), piece.generation()};
  reservation.pieces.push_back({piece.block(), piece.layer_begin(), piece.layer_end(),
                                piece.offset(), piece.digest(), false});
  return absl::OkStatus();
}

absl::Span<uint8_t> HandoffTaker::PieceMemory(const Reservation& reservation,
                                              const Piece& piece) const {
  const kv::ByteRange range = deps_.pool.layout().PieceRange(piece.layer_begin, piece.layer_end);
  return {reservation.pages[piece.block].data() + range.offset, range.bytes};
}

void HandoffTaker::StartFetches() {
  while (!wanted_.empty() && fetches_.size() < options_.fetches_max) {
    const auto [lease, piece] = wanted_.front();
    wanted_.pop_front();
    if (StartFetch(lease, piece)) continue;
    wanted_.emplace_front(lease, piece);
    if (!fetches_.empty()) return;  // the next one that ends starts more
    deps_.loop.Cancel(retry_timer_);
    retry_timer_ = deps_.loop.RunAt(Now() + kFetchRetryDelay, [this] { StartFetches(); });
    return;
  }
}

bool HandoffTaker::StartFetch(LeaseId lease, size_t piece) {
  Reservation* reservation = Find(lease);
  if (reservation == nullptr) return true;  // dropped while it waited
  if (!LeaseHeld(*reservation)) {
    Lapse(lease);
    return true;
  }
  Fetch read{{}, lease, piece, *reservation->endpoint, nullptr};
  absl::Status status = SLUICE_FAULT(deps_.faults, "handoff.fetch_started");
  if (status.ok()) status = read.state.ChangeTo(ReadState::kRunning, deps_.faults);
  if (status.ok()) {
    const Piece& wanted = reservation->pieces[piece];
    const absl::StatusOr<transport::FetchId> fetch =
        deps_.transport.Fetch(*reservation->endpoint, reservation->remote_key, wanted.offset,
                              PieceMemory(*reservation, wanted));
    status = fetch.status();
    if (fetch.ok()) {
      if (reservation->reads++ == 0) reservation->progress_at = Now();
      fetches_[*fetch] = std::move(read);
      return true;
    }
  }
  if (absl::IsResourceExhausted(status)) return false;
  Drop(lease, absl::UnavailableError(absl::StrCat("a page could not be read: ", status.message())),
       /*tell=*/true);
  return true;
}

void HandoffTaker::OnFetchDone(transport::FetchId id, const absl::Status& fetched) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  Fetch fetch = std::move(found->second);
  fetches_.erase(found);
  Reservation* reservation = Find(fetch.lease);
  if (reservation == nullptr) {
    fetch.state.MustChangeTo(fetch.quarantined ? ReadState::kEnded : ReadState::kRefused,
                             deps_.faults);
    fetch.quarantined.reset();
  } else {
    --reservation->reads;
    reservation->progress_at = Now();
    if (FinishRead(*reservation, fetch, fetched)) MaybeLand(*reservation);
  }
  StartFetches();
}

bool HandoffTaker::FinishRead(Reservation& reservation, Fetch& fetch, const absl::Status& fetched) {
  absl::Status status = fetched.ok() ? SLUICE_FAULT(deps_.faults, "handoff.fetch_done") : fetched;
  if (status.ok() && !FinishPiece(reservation, fetch.piece)) {
    fetch.state.MustChangeTo(ReadState::kRefused, deps_.faults);
    return false;
  }
  if (status.ok()) status = fetch.state.ChangeTo(ReadState::kVerified, deps_.faults);
  if (status.ok()) return true;
  fetch.state.MustChangeTo(ReadState::kRefused, deps_.faults);
  Drop(fetch.lease,
       absl::UnavailableError(absl::StrCat("reading a page failed: ", status.message())),
       /*tell=*/true);
  return false;
}

bool HandoffTaker::FinishPiece(Reservation& reservation, size_t index) {
  const LeaseId lease = reservation.lease;
  // Only now is it known that the holder kept the bytes in place all the while: its lease ends
  // later than ours.
  if (options_.guards.On(Guard::kCheckAfterFetch) && !LeaseHeld(reservation)) {
    Lapse(lease);
    return false;
  }
  Piece& piece = reservation.pieces[index];
  const absl::Span<const uint8_t> bytes = PieceMemory(reservation, piece);
  if (options_.guards.On(Guard::kDigests) && piece.digest != 0 &&
      kv::BytesDigest(bytes) != piece.digest) {
    CountDigestFailure(reservation);
    Drop(lease,
         absl::AbortedError(absl::StrCat("digest of block ", piece.block, ", layers ",
                                         piece.layer_begin, "..", piece.layer_end,
                                         " differs: the bytes are not what was offered")),
         /*tell=*/true);
    return false;
  }
  piece.done = true;
  ++reservation.pieces_done;
  reservation.bytes_done += bytes.size();
  return true;
}

absl::Status HandoffTaker::CheckCommit(const Reservation& reservation,
                                       const v1::Commit& commit) const {
  if (commit.tokens() != reservation.prompt.size() || commit.bytes() != MoveBytes(reservation) ||
      commit.pieces() > reservation.covered.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit of ", commit.tokens(), " tokens in ", commit.pieces(), " pieces of ",
                     commit.bytes(), " bytes; the lease is for ", reservation.prompt.size(), " in ",
                     MoveBytes(reservation)));
  }
  if (commit.first_tokens_size() > 1 || commit.cached_tokens() > commit.tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("commit with ", commit.first_tokens_size(),
                                                   " first tokens and ", commit.cached_tokens(),
                                                   " cached ones"));
  }
  if (commit.first_tokens().empty()) return absl::OkStatus();
  return FromProto(commit.first_tokens(0), options_.vocabulary).status();
}

void HandoffTaker::OnCommit(transport::EndpointId from, const v1::Commit& commit) {
  Reservation* reservation = FindAddressee(from, commit);
  if (reservation == nullptr) return;
  if (!SLUICE_FAULT(deps_.faults, "handoff.commit_received").ok()) return;
  if (reservation->commit.has_value()) {
    ++deps_.counters.duplicate_messages;
    return;
  }
  const absl::Status status = CheckCommit(*reservation, commit);
  if (!status.ok()) {
    ++deps_.counters.invalid_messages;
    return Drop(reservation->lease, absl::AbortedError(absl::StrCat("refused: ", status.message())),
                /*tell=*/true);
  }
  reservation->commit = commit;
  if (!commit.first_tokens().empty()) {
    reservation->first = *FromProto(commit.first_tokens(0), options_.vocabulary);
  }
  MaybeLand(*reservation);
}

}  // namespace sluice::handoff
