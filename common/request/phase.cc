#include "request/phase.h"

namespace sluice::request {

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kAdmitted:
      return "ADMITTED";
    case Phase::kPlaced:
      return "PLACED";
    case Phase::kReserved:
      return "RESERVED";
    case Phase::kPrefilling:
      return "PREFILLING";
    case Phase::kTransferring:
      return "TRANSFERRING";
    case Phase::kVerified:
      return "VERIFIED";
    case Phase::kDecoding:
      return "DECODING";
    case Phase::kStreaming:
      return "STREAMING";
    case Phase::kDone:
      return "DONE";
    case Phase::kCancelled:
      return "CANCELLED";
    case Phase::kFailed:
      return "FAILED";
  }
  return "UNKNOWN";
}

bool IsTerminal(Phase phase) {
  return phase == Phase::kDone || phase == Phase::kCancelled || phase == Phase::kFailed;
}

bool MayFollow(Phase from, Phase to) {
  if (IsTerminal(from)) return false;
  if (IsTerminal(to)) return true;
  if (to == Phase::kPlaced) return true;  // first placement, retry or migration
  if (to == Phase::kAdmitted) return false;
  // The first token streams to the client while pages still move, so streaming may begin from
  // prefilling on.
  if (to == Phase::kStreaming) return from >= Phase::kPrefilling;
  // A prompt computed where it is decoded skips reservation and transfer.
  if (from == Phase::kPlaced && to == Phase::kPrefilling) return true;
  if (from == Phase::kPrefilling && to == Phase::kDecoding) return true;
  if (from == Phase::kStreaming)
    return to == Phase::kTransferring || to == Phase::kVerified || to == Phase::kDecoding;
  return static_cast<int>(to) == static_cast<int>(from) + 1;
}

}  // namespace sluice::request
