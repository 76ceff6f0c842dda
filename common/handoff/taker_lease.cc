// Leases as the taker counts them, their renewal, and the release of the source.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "handoff/taker.h"
#include "handoff/taker_reservation.h"

namespace sluice::handoff {
namespace {

constexpr size_t kUnacknowledgedMax = 16;

}  // namespace

bool HandoffTaker::LeaseHeld(const Reservation& reservation) const {
  return Now() < reservation.deadline;
}

void HandoffTaker::Lapse(LeaseId lease) {
  ++deps_.counters.lease_expiries;
  Drop(lease, absl::AbortedError("the lease on the holder's pages has lapsed"), /*tell=*/true);
}

void HandoffTaker::ArmLease(Reservation& reservation) {
  absl::Time at = reservation.context.deadline;
  if (!reservation.attached()) at = std::min(at, reservation.attach_by);
  if (!reservation.landed()) at = std::min(at, reservation.deadline);
  reservation.lease_timer = deps_.loop.RunAt(at, [this, lease = reservation.lease] {
    Reservation* found = Find(lease);
    SLUICE_CHECK(found != nullptr);
    if (Now() >= found->context.deadline) {
      return Drop(
          lease,
          absl::DeadlineExceededError("the request's deadline passed before its pages were here"),
          /*tell=*/true);
    }
    if (!found->attached() && Now() >= found->attach_by) {
      ++deps_.counters.lease_expiries;
      return Drop(lease,
                  absl::AbortedError(absl::StrCat("nobody asked for the reserved pages within ",
                                                  absl::FormatDuration(options_.attach_wait))),
                  /*tell=*/true);
    }
    if (!found->landed() && !LeaseHeld(*found)) return Lapse(lease);
    ArmLease(*found);  // renewed or attached meanwhile
  });
}

void HandoffTaker::ArmRenewal(Reservation& reservation, absl::Time at) {
  deps_.loop.Cancel(reservation.renew_timer);
  reservation.renew_timer = deps_.loop.RunAt(at, [this, lease = reservation.lease] {
    Reservation* found = Find(lease);
    SLUICE_CHECK(found != nullptr && !found->landed());
    Renew(*found);
  });
}

absl::Status HandoffTaker::CheckProgress(Reservation& reservation) {
  // Past its lease it lapses: it may be this process that stood still.
  if (reservation.reads > 0 && LeaseHeld(reservation) &&
      Now() - reservation.progress_at >= 2 * options_.lease) {
    return absl::UnavailableError(absl::StrCat(
        "no read of a page has ended for ", absl::FormatDuration(Now() - reservation.progress_at),
        ", ", reservation.reads, " are under way; ", reservation.bytes_done, " of ",
        MoveBytes(reservation), " bytes came"));
  }
  if (reservation.commit.has_value() && reservation.pieces_done == reservation.pieces.size()) {
    if (reservation.done_at_renewal == reservation.pieces_done) {
      return absl::AbortedError(absl::StrCat("pieces were lost: ", reservation.bytes_done, " of ",
                                             MoveBytes(reservation), " bytes came"));
    }
    reservation.done_at_renewal = reservation.pieces_done;
  }
  return absl::OkStatus();
}

void HandoffTaker::Renew(Reservation& reservation) {
  const absl::Time sent = Now();
  const absl::Status progress = CheckProgress(reservation);
  if (!progress.ok()) return Drop(reservation.lease, progress, /*tell=*/true);
  // Asked again well before the lease ends, should the answer be lost.
  ArmRenewal(reservation, sent + options_.lease / 8);
  if (!reservation.endpoint.has_value()) return;  // asked once the holder has called
  v1::MoveMessage message;
  v1::Renew* renew = message.mutable_renew();
  renew->set_lease_id(reservation.lease.value().ToBytes());
  renew->set_holder_incarnation(reservation.holder.value());
  renew->set_taker_incarnation(options_.incarnation.value());
  renew->set_sequence(reservation.renewals_sent);
  renew->set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease)));
  reservation.unacknowledged[reservation.renewals_sent++] = sent;
  if (reservation.unacknowledged.size() > kUnacknowledgedMax) {
    reservation.unacknowledged.erase(reservation.unacknowledged.begin());
  }
  if (!options_.guards.On(Guard::kRenewalNeedsAck)) reservation.deadline = sent + LeaseSpan();
  deps_.transport.Send(*reservation.endpoint, message.SerializeAsString(), {}).IgnoreError();
}

void HandoffTaker::OnRenewAck(transport::EndpointId from, const v1::RenewAck& ack) {
  LeaseId lease;
  Reservation* reservation = ParseLease(ack.lease_id(), &lease) ? Find(lease) : nullptr;
  if (reservation == nullptr || reservation->endpoint != from ||
      !options_.guards.Match(Incarnation(ack.taker_incarnation()), options_.incarnation) ||
      !options_.guards.Match(Incarnation(ack.holder_incarnation()), reservation->holder)) {
    ++deps_.counters.stale_messages;
    return;
  }
  const auto asked = reservation->unacknowledged.find(ack.sequence());
  if (asked == reservation->unacknowledged.end() || reservation->landed()) {
    ++deps_.counters.duplicate_messages;
    return;
  }
  const absl::Time sent = asked->second;
  reservation->unacknowledged.erase(reservation->unacknowledged.begin(), std::next(asked));
  if (!LeaseHeld(*reservation) && options_.guards.On(Guard::kNoResurrection)) return Lapse(lease);
  const absl::Time from_when = options_.guards.On(Guard::kCountFromSending) ? sent : Now();
  reservation->deadline = std::max(reservation->deadline, from_when + LeaseSpan());
  ArmRenewal(*reservation, sent + options_.lease / 2);
}

void HandoffTaker::SendReleased(const Reservation& reservation, v1::Released::Outcome outcome,
                                absl::string_view reason) {
  v1::MoveMessage message;
  v1::Released* released = message.mutable_released();
  released->set_lease_id(reservation.lease.value().ToBytes());
  released->set_holder_incarnation(reservation.holder.value());
  released->set_taker_incarnation(options_.incarnation.value());
  released->set_outcome(outcome);
  released->set_reason(std::string(reason));
  Releasing& releasing = releasing_[reservation.lease];
  releasing.state.MustChangeTo(ReleaseState::kSent, deps_.faults);
  releasing.holder = reservation.holder;
  releasing.endpoint = *reservation.endpoint;
  releasing.message = message.SerializeAsString();
  releasing.until = Now() + options_.lease;
  releasing.interval = options_.lease / 32;
  RepeatReleased(reservation.lease);
}

void HandoffTaker::RepeatReleased(LeaseId lease) {
  const auto found = releasing_.find(lease);
  Releasing& releasing = found->second;
  // The holder's lease is over by then too: it lets go by itself.
  const bool give_up =
      Now() >= releasing.until || releasing_.size() > 2 * options_.reservations_max;
  deps_.transport.Send(releasing.endpoint, releasing.message, {}).IgnoreError();
  if (give_up) {
    releasing.state.MustChangeTo(ReleaseState::kGivenUp, deps_.faults);
    releasing_.erase(found);
    return;
  }
  releasing.interval *= 2;
  releasing.timer =
      deps_.loop.RunAt(Now() + releasing.interval, [this, lease] { RepeatReleased(lease); });
}

void HandoffTaker::OnReleasedAck(transport::EndpointId from, const v1::ReleasedAck& ack) {
  LeaseId lease;
  const auto found = ParseLease(ack.lease_id(), &lease) ? releasing_.find(lease) : releasing_.end();
  if (found == releasing_.end() ||
      !options_.guards.Match(Incarnation(ack.taker_incarnation()), options_.incarnation) ||
      !options_.guards.Match(Incarnation(ack.holder_incarnation()), found->second.holder) ||
      found->second.endpoint != from) {
    ++deps_.counters.stale_messages;
    return;
  }
  // Refused: the holder's answer is as good as lost, and it is told again.
  if (!found->second.state.ChangeTo(ReleaseState::kAcknowledged, deps_.faults).ok()) return;
  deps_.loop.Cancel(found->second.timer);
  releasing_.erase(found);
}

void HandoffTaker::OnWithdrawn(transport::EndpointId from, const v1::Withdrawn& withdrawn) {
  LeaseId lease;
  if (!ParseLease(withdrawn.lease_id(), &lease) ||
      !options_.guards.Match(Incarnation(withdrawn.taker_incarnation()), options_.incarnation)) {
    ++deps_.counters.stale_messages;
    return;
  }
  Reservation* reservation = Find(lease);
  if (reservation == nullptr || reservation->landed()) {
    ++deps_.counters.stale_messages;
    return AnswerUnknown(from, withdrawn.lease_id(), lease, withdrawn.holder_incarnation());
  }
  if (!options_.guards.Match(Incarnation(withdrawn.holder_incarnation()), reservation->holder) ||
      !options_.guards.SameAttempt(withdrawn.attempt(), reservation->context.attempt) ||
      (reservation->endpoint.has_value() && reservation->endpoint != from)) {
    ++deps_.counters.stale_messages;
    return;
  }
  reservation->endpoint = from;
  Drop(lease, absl::AbortedError(absl::StrCat("the holder withdrew: ", withdrawn.reason())),
       /*tell=*/true);
}

// A holder that serves a lease nobody here knows must not keep its pages for it.
void HandoffTaker::AnswerUnknown(transport::EndpointId from, absl::string_view lease_bytes,
                                 LeaseId lease, uint64_t holder) {
  const auto releasing = releasing_.find(lease);
  if (releasing != releasing_.end()) {
    deps_.transport.Send(from, releasing->second.message, {}).IgnoreError();
    return;
  }
  v1::MoveMessage message;
  v1::Released* released = message.mutable_released();
  released->set_lease_id(std::string(lease_bytes));
  released->set_holder_incarnation(holder);
  released->set_taker_incarnation(options_.incarnation.value());
  released->set_outcome(v1::Released::OUTCOME_ABANDONED);
  released->set_reason("no reservation has this lease");
  deps_.transport.Send(from, message.SerializeAsString(), {}).IgnoreError();
}

}  // namespace sluice::handoff
