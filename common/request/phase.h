// The one state machine of a request. Its names are used alike by logs, metrics, spans, admin and
// the simulation.
#pragma once

#include <array>

#include "absl/strings/string_view.h"
#include "base/state_machine.h"

namespace sluice::request {

enum class Phase {
  kAdmitted,      // authenticated, within limits, deadline fixed
  kPlaced,        // workers chosen, start credit held
  kReserved,      // pages of the decode worker are held
  kPrefilling,    // the prompt is being computed
  kTransferring,  // pages are being fetched
  kVerified,      // all pieces are there and checked
  kDecoding,      // in the continuous batch
  kStreaming,     // tokens reach the client
  kDone,          // terminal: complete
  kCancelled,     // terminal: the client left
  kFailed,        // terminal: one typed error
};

inline constexpr std::array<Phase, 11> kAllPhases = {
    Phase::kAdmitted,     Phase::kPlaced,    Phase::kReserved, Phase::kPrefilling,
    Phase::kTransferring, Phase::kVerified,  Phase::kDecoding, Phase::kStreaming,
    Phase::kDone,         Phase::kCancelled, Phase::kFailed};

constexpr bool IsTerminal(Phase phase) {
  return phase == Phase::kDone || phase == Phase::kCancelled || phase == Phase::kFailed;
}

// True for the steps of the table above, for a step back to kPlaced (retry, migration) and for ends
// from any live phase.
constexpr bool MayFollow(Phase from, Phase to) {
  if (IsTerminal(from)) return false;
  if (IsTerminal(to)) return true;
  if (to == Phase::kPlaced) return true;  // first placement, retry or migration
  if (to == Phase::kAdmitted) return false;
  // The first token streams to the client while pages still move, so streaming may begin from
  // prefilling on.
  if (to == Phase::kStreaming) return from >= Phase::kPrefilling && from != Phase::kStreaming;
  // A prompt computed where it is decoded skips reservation and transfer.
  if (from == Phase::kPlaced && to == Phase::kPrefilling) return true;
  if (from == Phase::kPrefilling && to == Phase::kDecoding) return true;
  return static_cast<int>(to) == static_cast<int>(from) + 1;
}

namespace internal {

constexpr size_t CountPhaseChanges() {
  size_t changes = 0;
  for (Phase from : kAllPhases) {
    for (Phase to : kAllPhases) changes += MayFollow(from, to) ? 1 : 0;
  }
  return changes;
}

constexpr auto MakePhaseMachine() {
  StateMachine<Phase, kAllPhases.size(), CountPhaseChanges()> machine = {
      "phase",
      {"ADMITTED", "PLACED", "RESERVED", "PREFILLING", "TRANSFERRING", "VERIFIED", "DECODING",
       "STREAMING", "DONE", "CANCELLED", "FAILED"},
      {}};
  size_t at = 0;
  for (Phase from : kAllPhases) {
    for (Phase to : kAllPhases) {
      if (MayFollow(from, to)) machine.changes[at++] = {from, to};
    }
  }
  return machine;
}

}  // namespace internal

// What MayFollow allows, as a table; each change is a fault point ("phase.ADMITTED_to_PLACED").
inline constexpr auto kPhaseMachine = internal::MakePhaseMachine();

// "ADMITTED", "PLACED", ...
constexpr absl::string_view PhaseName(Phase phase) { return kPhaseMachine.NameOf(phase); }

}  // namespace sluice::request
