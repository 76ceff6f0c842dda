// The state machines of a page move, as tables. Each change is a fault point
// (base/state_machine.h).
#pragma once

#include <string>
#include <vector>

#include "base/state_machine.h"

namespace sluice::handoff {

// A transfer on the holder's side.
enum class SourceState {
  kNew,
  kOpen,       // grant accepted; nobody reads yet
  kOffering,   // pieces were offered: the taker may be reading
  kCommitted,  // everything was offered
  kLingering,  // ended, but a taker may still be reading until its lease is over
  kGone,
};
inline constexpr StateMachine<SourceState, 6, 10> kSourceMachine = {
    "source",
    {"new", "open", "offering", "committed", "lingering", "gone"},
    {{{SourceState::kNew, SourceState::kOpen},
      {SourceState::kOpen, SourceState::kOffering},
      {SourceState::kOpen, SourceState::kCommitted},  // nothing had to be moved
      {SourceState::kOffering, SourceState::kCommitted},
      {SourceState::kOffering, SourceState::kLingering},
      {SourceState::kCommitted, SourceState::kLingering},
      {SourceState::kOpen, SourceState::kGone},
      {SourceState::kOffering, SourceState::kGone},
      {SourceState::kCommitted, SourceState::kGone},
      {SourceState::kLingering, SourceState::kGone}}}};

// A reservation: the taker's side of a transfer.
enum class ReservationState {
  kNew,
  kReserved,   // pages taken, lease running; the holder has not called yet
  kCalled,     // the holder's connection is known
  kArriving,   // pieces were offered
  kLanded,     // everything is here and verified
  kDelivered,  // the sequence has it
  kDropped,    // given up
};
inline constexpr StateMachine<ReservationState, 7, 10> kReservationMachine = {
    "reservation",
    {"new", "reserved", "called", "arriving", "landed", "delivered", "dropped"},
    {{{ReservationState::kNew, ReservationState::kReserved},
      {ReservationState::kReserved, ReservationState::kCalled},
      {ReservationState::kCalled, ReservationState::kArriving},
      {ReservationState::kCalled, ReservationState::kLanded},  // nothing had to be moved
      {ReservationState::kArriving, ReservationState::kLanded},
      {ReservationState::kLanded, ReservationState::kDelivered},
      {ReservationState::kReserved, ReservationState::kDropped},
      {ReservationState::kCalled, ReservationState::kDropped},
      {ReservationState::kArriving, ReservationState::kDropped},
      {ReservationState::kLanded, ReservationState::kDropped}}}};

// One read of a holder's memory.
enum class ReadState {
  kNew,
  kRunning,
  kVerified,     // the lease was held when it had ended, and its digest is right
  kRefused,      // failed, too late, or not the bytes that were offered
  kQuarantined,  // nobody wants it any more, but it may still write: its page is kept apart
  kEnded,        // it has ended, and its page may go
};
inline constexpr StateMachine<ReadState, 6, 5> kReadMachine = {
    "read",
    {"new", "running", "verified", "refused", "quarantined", "ended"},
    {{{ReadState::kNew, ReadState::kRunning},
      {ReadState::kRunning, ReadState::kVerified},
      {ReadState::kRunning, ReadState::kRefused},
      {ReadState::kRunning, ReadState::kQuarantined},
      {ReadState::kQuarantined, ReadState::kEnded}}}};

// The taker's word that it reads no more, until the holder has it.
enum class ReleaseState { kNew, kSent, kAcknowledged, kGivenUp };
inline constexpr StateMachine<ReleaseState, 4, 3> kReleaseMachine = {
    "release",
    {"new", "sent", "acknowledged", "given_up"},
    {{{ReleaseState::kNew, ReleaseState::kSent},
      {ReleaseState::kSent, ReleaseState::kAcknowledged},
      {ReleaseState::kSent, ReleaseState::kGivenUp}}}};  // the holder's lease is over, or its
                                                         // connection

// The fault points of all changes above.
inline std::vector<std::string> MovePoints() {
  std::vector<std::string> points;
  for (const std::vector<std::string>& machine :
       {kSourceMachine.Points(), kReservationMachine.Points(), kReadMachine.Points(),
        kReleaseMachine.Points()}) {
    points.insert(points.end(), machine.begin(), machine.end());
  }
  return points;
}

}  // namespace sluice::handoff
