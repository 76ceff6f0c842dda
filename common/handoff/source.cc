#include "handoff/source.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "handoff/source_transfer.h"

namespace sluice::handoff {

HandoffSource::HandoffSource(const SourceOptions& options, const Dependencies& dependencies)
    : options_(options),
      deps_(dependencies),
      own_address_(dependencies.transport.LocalAddress()),
      peers_(options.peers, dependencies.counters) {}

HandoffSource::~HandoffSource() = default;

HandoffSource::Transfer* HandoffSource::Find(LeaseId lease) {
  const auto found = transfers_.find(lease);
  return found == transfers_.end() ? nullptr : found->second.get();
}

absl::Status HandoffSource::CheckGrant(const v1::Grant& grant, uint32_t prompt_tokens,
                                       LeaseId* lease) const {
  const kv::PageLayout& layout = deps_.pool.layout();
  if (!ParseLease(grant.lease_id(), lease))
    return absl::InvalidArgumentError("grant: lease_id is not 16 random bytes");
  if (!options_.guards.Match(Incarnation(grant.holder_incarnation()), options_.incarnation)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "grant is for holder incarnation ", grant.holder_incarnation(), ", this one is ",
        options_.incarnation.value(), ": the worker was restarted; ask for a new grant"));
  }
  if (grant.layout_hash() != layout.hash().ToBytes()) {
    const absl::StatusOr<kv::PageLayout> theirs = FromProto(grant.layout());
    return absl::FailedPreconditionError(
        absl::StrCat("page layouts differ: the taker has {",
                     theirs.ok() ? theirs->Describe() : theirs.status().message(),
                     "}, this holder has {", layout.Describe(), "}"));
  }
  if (grant.lease_ms() == 0 || absl::Milliseconds(grant.lease_ms()) > options_.lease_max) {
    return absl::InvalidArgumentError(absl::StrCat("grant: lease_ms ", grant.lease_ms(),
                                                   " is not in 1..",
                                                   absl::ToInt64Milliseconds(options_.lease_max)));
  }
  const uint32_t pages = layout.PagesFor(prompt_tokens);
  if (prompt_tokens > grant.tokens_max() || pages > grant.pages_max()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the prompt has ", prompt_tokens, " tokens in ", pages,
                     " pages, the grant covers ", grant.tokens_max(), " and ", grant.pages_max()));
  }
  if (grant.held().blocks() > pages) {
    return absl::InvalidArgumentError(absl::StrCat("grant: the taker holds ", grant.held().blocks(),
                                                   " blocks of a prompt of ", pages));
  }
  if (served_.contains(*lease) || transfers_.contains(*lease)) {
    return absl::AlreadyExistsError(
        absl::StrCat("lease ", lease->value().ToHex(), " was served before"));
  }
  if (transfers_.size() >= options_.transfers_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.transfers_max, " transfers are in use"));
  }
  return absl::OkStatus();
}

absl::Status HandoffSource::CheckOpen(const v1::Grant& grant, uint32_t prompt_tokens,
                                      LeaseId* lease) {
  const absl::Status status = CheckGrant(grant, prompt_tokens, lease);
  if (!status.ok() && !absl::IsResourceExhausted(status)) ++deps_.counters.grants_refused;
  SLUICE_RETURN_IF_ERROR(status);
  return peers_.MayConnect(Incarnation(grant.taker_incarnation()), deps_.loop.clock().Now());
}

absl::StatusOr<transport::EndpointId> HandoffSource::ConnectTaker(const v1::Grant& grant) {
  const std::string& own = deps_.transport.capabilities().name;
  for (const v1::TransportAddress& address : grant.addresses()) {
    if (address.backend() == own) return deps_.transport.Connect(address.address());
  }
  const auto backend = [](std::string* out, const v1::TransportAddress& address) {
    out->append(address.backend());
  };
  return absl::FailedPreconditionError(absl::StrCat("no common transport: the taker offers [",
                                                    absl::StrJoin(grant.addresses(), ", ", backend),
                                                    "], this holder has ", own));
}

void HandoffSource::Remember(LeaseId lease) {
  served_.insert(lease);
  served_order_.push_back(lease);
  if (served_order_.size() <= options_.served_max) return;
  served_.erase(served_order_.front());
  served_order_.pop_front();
}

absl::Status HandoffSource::Open(const v1::Grant& grant, uint32_t prompt_tokens) {
  const absl::Time received = deps_.loop.clock().Now();
  LeaseId lease;
  SLUICE_RETURN_IF_ERROR(CheckOpen(grant, prompt_tokens, &lease));
  SLUICE_RETURN_IF_ERROR(SLUICE_FAULT(deps_.faults, "handoff.open"));
  const absl::StatusOr<transport::EndpointId> endpoint = ConnectTaker(grant);
  if (absl::IsUnavailable(endpoint.status()))
    peers_.OnConnectionFailed(Incarnation(grant.taker_incarnation()), received);
  SLUICE_RETURN_IF_ERROR(endpoint.status());
  auto transfer = std::make_unique<Transfer>();
  SLUICE_RETURN_IF_ERROR(transfer->state.ChangeTo(SourceState::kOpen, deps_.faults));
  Remember(lease);
  transfer->lease = lease;
  transfer->attempt = grant.attempt();
  transfer->taker = Incarnation(grant.taker_incarnation());
  transfer->endpoint = *endpoint;
  transfer->expires = received + absl::Milliseconds(grant.lease_ms());
  transfer->outbox.emplace_back();  // the empty offer that says where renewals go
  Transfer& opened = *transfer;
  transfers_[lease] = std::move(transfer);
  ArmExpiry(opened);
  Flush(opened);
  return absl::OkStatus();
}

void HandoffSource::ArmExpiry(Transfer& transfer) {
  transfer.expiry_timer = deps_.loop.RunAt(transfer.expires, [this, lease = transfer.lease] {
    Transfer* found = Find(lease);
    SLUICE_CHECK(found != nullptr);
    if (deps_.loop.clock().Now() < found->expires) return ArmExpiry(*found);  // renewed meanwhile
    ++deps_.counters.lease_expiries;
    End(lease, absl::AbortedError("the source lease expired before the taker had everything"),
        /*release=*/true);
  });
}

void HandoffSource::Offer(LeaseId lease, std::vector<engine::FinalPage> pages, int layer_begin,
                          int layer_end) {
  Transfer* transfer = Find(lease);
  if (transfer == nullptr || transfer->ended()) return;
  SLUICE_CHECK(!transfer->commit.has_value()) << "pages offered after the commit";
  for (engine::FinalPage& page : pages) {
    const absl::Status queued = QueuePieces(*transfer, page, static_cast<uint32_t>(layer_begin),
                                            static_cast<uint32_t>(layer_end));
    if (!queued.ok()) {
      SendWithdrawn(*transfer, queued.message());
      return End(lease, queued, /*release=*/false);
    }
    transfer->pins[page.block] = std::move(page.pin);
    if (transfer->pinned_since.has_value()) continue;
    transfer->pinned_since = pins_since_.insert(pins_since_.end(), deps_.loop.clock().Now());
    PublishPinAge();
  }
  Flush(*transfer);
}

void HandoffSource::Commit(LeaseId lease, uint32_t tokens,
                           const std::optional<request::SampledToken>& first,
                           uint32_t cached_tokens) {
  Transfer* transfer = Find(lease);
  if (transfer == nullptr || transfer->ended()) return;
  SLUICE_CHECK(!transfer->commit.has_value()) << "committed twice";
  auto& digests = transfer->digests;
  std::sort(digests.begin(), digests.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.block, a.layer_begin) < std::make_pair(b.block, b.layer_begin);
  });
  std::vector<uint64_t> ordered;
  for (const Transfer::Digest& piece : digests) ordered.push_back(piece.digest);

  v1::Commit commit;
  commit.set_lease_id(lease.value().ToBytes());
  commit.set_holder_incarnation(options_.incarnation.value());
  commit.set_taker_incarnation(transfer->taker.value());
  commit.set_attempt(transfer->attempt);
  commit.set_tokens(tokens);
  commit.set_pieces(static_cast<uint32_t>(digests.size()));
  commit.set_bytes(transfer->bytes);
  commit.set_digest(CommitDigest(ordered));
  if (first.has_value()) *commit.add_first_tokens() = ToProto(*first);
  commit.set_cached_tokens(cached_tokens);
  transfer->commit = std::move(commit);
  transfer->committed_at = deps_.loop.clock().Now();
  Flush(*transfer);
}

void HandoffSource::Withdraw(LeaseId lease, absl::string_view reason) {
  Transfer* transfer = Find(lease);
  if (transfer == nullptr || transfer->ended()) return;
  SendWithdrawn(*transfer, reason);
  Close(*transfer, /*release=*/false);  // no event: the worker knows
}

void HandoffSource::OnRenew(transport::EndpointId from, const v1::Renew& renew) {
  const absl::Time received = deps_.loop.clock().Now();
  LeaseId lease;
  Transfer* transfer = ParseLease(renew.lease_id(), &lease) ? Find(lease) : nullptr;
  if (transfer == nullptr ||
      !options_.guards.Match(Incarnation(renew.holder_incarnation()), options_.incarnation) ||
      !options_.guards.Match(Incarnation(renew.taker_incarnation()), transfer->taker) ||
      received >= transfer->expires) {
    ++deps_.counters.stale_messages;
    return;
  }
  if (renew.lease_ms() == 0 || absl::Milliseconds(renew.lease_ms()) > options_.lease_max) {
    ++deps_.counters.invalid_messages;
    return;
  }
  // A renewal of what will not complete is answered by what its taker has missed.
  if (transfer->ended()) return SendWithdrawn(*transfer, "the transfer has ended");
  if (received > transfer->committed_at + options_.lease_max) return;
  transfer->expires = std::max(transfer->expires, received + absl::Milliseconds(renew.lease_ms()));
  v1::MoveMessage message;
  v1::RenewAck* ack = message.mutable_renew_ack();
  ack->set_lease_id(renew.lease_id());
  ack->set_holder_incarnation(renew.holder_incarnation());
  ack->set_taker_incarnation(renew.taker_incarnation());
  ack->set_sequence(renew.sequence());
  // A lost answer costs nothing: the taker asks again.
  deps_.transport.Send(from, message.SerializeAsString(), {}).IgnoreError();
  // Half a lease after the commit the taker should not be waiting any more: it may have missed it.
  if (!transfer->commit_sent ||
      received < transfer->committed_at + absl::Milliseconds(renew.lease_ms()) / 2)
    return;
  const absl::Status sent = SendCommit(*transfer);
  if (!sent.ok() && !absl::IsResourceExhausted(sent)) End(lease, sent, /*release=*/false);
}

// Without Guard::kMatchLease any release from a peer ends whatever it is being served.
HandoffSource::Transfer* HandoffSource::FindReleased(transport::EndpointId from, LeaseId lease) {
  Transfer* transfer = Find(lease);
  if (transfer != nullptr || options_.guards.On(Guard::kMatchLease)) return transfer;
  for (auto& [other, served] : transfers_) {
    if (served->endpoint == from) return served.get();
  }
  return nullptr;
}

void HandoffSource::OnReleased(transport::EndpointId from, const v1::Released& released) {
  LeaseId lease;
  if (!ParseLease(released.lease_id(), &lease) ||
      (released.outcome() != v1::Released::OUTCOME_FETCHED &&
       released.outcome() != v1::Released::OUTCOME_ABANDONED)) {
    ++deps_.counters.invalid_messages;
    return;
  }
  if (!options_.guards.Match(Incarnation(released.holder_incarnation()), options_.incarnation)) {
    ++deps_.counters.stale_messages;
    return;
  }
  if (!SLUICE_FAULT(deps_.faults, "handoff.released").ok()) return;
  Transfer* transfer = FindReleased(from, lease);
  if (transfer != nullptr &&
      !options_.guards.Match(Incarnation(released.taker_incarnation()), transfer->taker)) {
    ++deps_.counters.stale_messages;
    return;
  }
  SendReleasedAck(from, released);
  if (transfer == nullptr) {
    ++(served_.contains(lease) ? deps_.counters.duplicate_messages : deps_.counters.stale_messages);
    return;
  }
  const bool fetched = released.outcome() == v1::Released::OUTCOME_FETCHED && transfer->commit_sent;
  End(transfer->lease,
      fetched ? absl::OkStatus()
              : absl::AbortedError(absl::StrCat("the taker gave up: ", released.reason())),
      /*release=*/true);
}

void HandoffSource::OnPeerDown(transport::EndpointId endpoint, const absl::Status& reason) {
  std::vector<LeaseId> hit;
  absl::btree_set<Incarnation> lost;
  for (const auto& [lease, transfer] : transfers_) {
    if (transfer->endpoint != endpoint) continue;
    hit.push_back(lease);
    if (!transfer->ended()) lost.insert(transfer->taker);
  }
  for (Incarnation taker : lost) peers_.OnConnectionFailed(taker, deps_.loop.clock().Now());
  for (LeaseId lease : hit) {
    End(lease,
        absl::UnavailableError(absl::StrCat("the taker's connection ended: ", reason.message())),
        /*release=*/false);
  }
}

void HandoffSource::End(LeaseId lease, const absl::Status& status, bool release) {
  Transfer* transfer = Find(lease);
  SLUICE_CHECK(transfer != nullptr);
  const bool report = !transfer->ended();
  const uint64_t bytes = transfer->bytes;
  // What arrived counts, even if the worker has given the transfer up meanwhile: so do the taker's
  // counters.
  if (status.ok()) {
    peers_.OnMoved(transfer->taker);
    ++deps_.counters.transfers_completed;
    deps_.counters.bytes_sent += bytes;
    deps_.counters.pieces_sent += transfer->digests.size();
  } else if (report) {
    ++deps_.counters.transfers_failed;
  }
  Close(*transfer, release);
  if (report) deps_.events.OnSourceEnded(lease, status, bytes);
}

void HandoffSource::Close(Transfer& transfer, bool release) {
  transfer.outbox.clear();
  if (!release && transfer.pieces_sent()) {
    if (!transfer.ended()) transfer.state.MustChangeTo(SourceState::kLingering, deps_.faults);
    return;
  }
  transfer.state.MustChangeTo(SourceState::kGone, deps_.faults);
  deps_.loop.Cancel(transfer.expiry_timer);
  deps_.loop.Cancel(transfer.retry_timer);
  if (transfer.pinned_since.has_value()) pins_since_.erase(*transfer.pinned_since);
  PublishPinAge();
  transfers_.erase(LeaseId(transfer.lease));
}

void HandoffSource::PublishPinAge() {
  deps_.counters.pinned_since_ns.Set(
      pins_since_.empty() ? 0 : static_cast<uint64_t>(absl::ToUnixNanos(pins_since_.front())));
}

}  // namespace sluice::handoff
