// The one state machine of a request. Its names are used alike by logs, metrics, spans, admin and
// the simulation.
#pragma once

#include <array>

#include "absl/strings/string_view.h"

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

// "ADMITTED", "PLACED", ...
absl::string_view PhaseName(Phase phase);
bool IsTerminal(Phase phase);
// True for the steps of the table above, for a step back to kPlaced (retry, migration) and for ends
// from any live phase.
bool MayFollow(Phase from, Phase to);

}  // namespace sluice::request
