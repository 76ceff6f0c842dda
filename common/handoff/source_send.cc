// What the holder sends: pieces cut and batched, then the commit, in order and at the pace the
// transport takes them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "handoff/source.h"
#include "handoff/source_transfer.h"

namespace sluice::handoff {
namespace {

// Room in a message for its fixed fields, and for one piece's descriptor, generously.
constexpr size_t kMessageOverhead = 256;
constexpr size_t kPieceOverhead = 80;
// How long a full send queue gets to drain.
constexpr absl::Duration kSendRetryDelay = absl::Milliseconds(1);

}  // namespace

absl::Status HandoffSource::QueuePieces(Transfer& transfer, const engine::FinalPage& page,
                                        uint32_t layer_begin, uint32_t layer_end) {
  const kv::PageLayout& layout = deps_.pool.layout();
  const transport::Capabilities& capabilities = deps_.transport.capabilities();
  uint32_t layers_max = layer_end - layer_begin;
  if (!capabilities.true_get) {
    // Inline, a piece must fit into one message.
    const size_t room = capabilities.message_bytes_max -
                        std::min(capabilities.message_bytes_max, kMessageOverhead + kPieceOverhead);
    layers_max = static_cast<uint32_t>(std::min<size_t>(layers_max, room / layout.layer_bytes()));
    if (layers_max == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("one layer of a page has ", layout.layer_bytes(), " bytes, a message takes ",
                       room, "; raise the transport's message limit"));
    }
  }
  for (uint32_t begin = layer_begin; begin < layer_end; begin += layers_max) {
    const uint32_t end = std::min(begin + layers_max, layer_end);
    const kv::ByteRange range = layout.PieceRange(begin, end);
    v1::Piece piece;
    piece.set_block(page.block);
    piece.set_page(page.pin.ref().index.value());
    piece.set_generation(page.pin.ref().generation.value());
    piece.set_layer_begin(begin);
    piece.set_layer_end(end);
    piece.set_offset(deps_.pool.PageOffset(page.pin.ref().index) + range.offset);
    piece.set_bytes(range.bytes);
    if (WantsDigest(options_.digests, page.block, begin)) {
      piece.set_digest(kv::BytesDigest({page.pin.data() + range.offset, range.bytes}));
    }
    transfer.digests.push_back({page.block, begin, piece.digest()});
    transfer.bytes += range.bytes;
    Enqueue(transfer, std::move(piece));
  }
  return absl::OkStatus();
}

void HandoffSource::Enqueue(Transfer& transfer, v1::Piece piece) {
  const transport::Capabilities& capabilities = deps_.transport.capabilities();
  const auto fits = [&](const Transfer::Batch& batch) {
    const size_t pieces = batch.pieces.size() + 1;
    const uint64_t payload = capabilities.true_get ? 0 : batch.bytes + piece.bytes();
    return pieces <= static_cast<size_t>(kOfferPiecesMax) &&
           payload + kMessageOverhead + deps_.pool_remote_key.size() + pieces * kPieceOverhead <=
               capabilities.message_bytes_max;
  };
  // The first batch stays empty: it carries addresses and must not wait for room.
  const bool append = !transfer.outbox.empty() && !transfer.outbox.back().pieces.empty() &&
                      fits(transfer.outbox.back());
  if (!append) transfer.outbox.emplace_back();
  transfer.outbox.back().bytes += piece.bytes();
  transfer.outbox.back().pieces.push_back(std::move(piece));
}

void HandoffSource::Flush(Transfer& transfer) {
  const LeaseId lease = transfer.lease;
  if (deps_.loop.clock().Now() >= transfer.expires) return;  // the expiry timer is due
  absl::Status sent;
  while (sent.ok() && !transfer.outbox.empty()) {
    sent = SendOffer(transfer);
    if (sent.ok()) transfer.outbox.pop_front();
  }
  if (sent.ok() && transfer.commit.has_value() && !transfer.commit_sent)
    sent = SendCommit(transfer);
  if (sent.ok()) return;
  if (!absl::IsResourceExhausted(sent)) return End(lease, sent, /*release=*/false);
  deps_.loop.Cancel(transfer.retry_timer);
  transfer.retry_timer =
      deps_.loop.RunAt(deps_.loop.clock().Now() + kSendRetryDelay, [this, lease] {
        Transfer* found = Find(lease);
        if (found != nullptr && !found->ended()) Flush(*found);
      });
}

absl::Status HandoffSource::SendOffer(Transfer& transfer) {
  const Transfer::Batch& batch = transfer.outbox.front();
  const bool inlined = !deps_.transport.capabilities().true_get && !batch.pieces.empty();
  if (!batch.pieces.empty() && transfer.state.get() == SourceState::kOpen)
    SLUICE_RETURN_IF_ERROR(transfer.state.ChangeTo(SourceState::kOffering, deps_.faults));
  v1::MoveMessage message;
  v1::Offer* offer = message.mutable_offer();
  offer->set_lease_id(transfer.lease.value().ToBytes());
  offer->set_holder_incarnation(options_.incarnation.value());
  offer->set_taker_incarnation(transfer.taker.value());
  offer->set_attempt(transfer.attempt);
  offer->set_sequence(transfer.offers_sent);
  const absl::Duration left = transfer.expires - deps_.loop.clock().Now();
  offer->set_source_lease_ms(
      static_cast<uint32_t>(std::max<int64_t>(absl::ToInt64Milliseconds(left), 0)));
  offer->set_inline_payload(inlined);
  if (batch.pieces.empty()) {
    v1::TransportAddress* address = offer->add_addresses();
    address->set_backend(deps_.transport.capabilities().name);
    address->set_address(own_address_);
  } else if (!inlined) {
    offer->set_remote_key(deps_.pool_remote_key);
  }
  std::vector<uint8_t> payload;
  for (const v1::Piece& piece : batch.pieces) {
    *offer->add_pieces() = piece;
    if (!inlined) continue;
    const PageIndex page(piece.page());
    const uint8_t* first =
        deps_.pool.PageData(page) + (piece.offset() - deps_.pool.PageOffset(page));
    payload.insert(payload.end(), first, first + piece.bytes());
  }
  SLUICE_RETURN_IF_ERROR(
      deps_.transport.Send(transfer.endpoint, message.SerializeAsString(), payload));
  ++transfer.offers_sent;
  if (batch.pieces.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(SLUICE_FAULT(deps_.faults, "handoff.offer_sent"));
  if (options_.guards.On(Guard::kPinUntilReleased)) return absl::OkStatus();
  for (const v1::Piece& piece : batch.pieces) transfer.pins.erase(piece.block());
  return absl::OkStatus();
}

absl::Status HandoffSource::SendCommit(Transfer& transfer) {
  if (transfer.state.get() != SourceState::kCommitted)
    SLUICE_RETURN_IF_ERROR(transfer.state.ChangeTo(SourceState::kCommitted, deps_.faults));
  v1::MoveMessage message;
  *message.mutable_commit() = *transfer.commit;
  SLUICE_RETURN_IF_ERROR(deps_.transport.Send(transfer.endpoint, message.SerializeAsString(), {}));
  transfer.commit_sent = true;
  return SLUICE_FAULT(deps_.faults, "handoff.commit_sent");
}

void HandoffSource::SendWithdrawn(Transfer& transfer, absl::string_view reason) {
  v1::MoveMessage message;
  v1::Withdrawn* withdrawn = message.mutable_withdrawn();
  withdrawn->set_lease_id(transfer.lease.value().ToBytes());
  withdrawn->set_holder_incarnation(options_.incarnation.value());
  withdrawn->set_taker_incarnation(transfer.taker.value());
  withdrawn->set_attempt(transfer.attempt);
  withdrawn->set_reason(std::string(reason));
  // If it is lost, the taker learns it from its next renewal, or its lease lapses.
  deps_.transport.Send(transfer.endpoint, message.SerializeAsString(), {}).IgnoreError();
}

void HandoffSource::SendReleasedAck(transport::EndpointId to, const v1::Released& released) {
  v1::MoveMessage message;
  v1::ReleasedAck* ack = message.mutable_released_ack();
  ack->set_lease_id(released.lease_id());
  ack->set_holder_incarnation(released.holder_incarnation());
  ack->set_taker_incarnation(released.taker_incarnation());
  // If it is lost, the taker repeats its release.
  deps_.transport.Send(to, message.SerializeAsString(), {}).IgnoreError();
}

}  // namespace sluice::handoff
