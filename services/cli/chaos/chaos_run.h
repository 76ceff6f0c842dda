// One answer twice, undisturbed and with a process killed in its middle, and what came of it. No
// processes, no network: both are given.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "services/cli/client/generate_client.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::cli {

// What was killed.
struct Victim {
  std::string name;  // "decode-1"
  pid_t pid = 0;
};

struct ChaosPlan {
  v1::GenerateRequest request;  // must be deterministic: greedy or with a seed
  uint32_t kill_at = 0;         // once the client has so many tokens
};

struct ChaosReport {
  Victim victim;
  uint32_t killed_at = 0;  // tokens that the client had
  // Longest time without new text, from the last before the kill on.
  absl::Duration pause = absl::ZeroDuration();
  uint32_t paused_at = 0;  // tokens that the client had then
  std::string undisturbed;
  std::string disturbed;
  std::string undisturbed_finish;
  std::string disturbed_finish;
  uint32_t tokens = 0;      // of the disturbed answer
  uint32_t recomputed = 0;  // tokens that other workers had to compute again
  uint32_t resumes = 0;     // at another router

  bool equal() const { return undisturbed == disturbed && undisturbed_finish == disturbed_finish; }
};

struct ChaosHooks {
  using OnText = std::function<void(const NewText&)>;
  // Runs a request to its end, as GenerateClient does.
  std::function<absl::StatusOr<GenerateOutcome>(v1::GenerateRequest, const OnText&)> generate;
  std::function<absl::StatusOr<Victim>()> kill;
  // The text of the disturbed answer as it comes, and the kill.
  std::function<void(absl::string_view)> show;
  std::function<void(const Victim&, uint32_t tokens)> killed;
};

// Blocks until both answers are there. Errors: those of the hooks; FAILED_PRECONDITION when the
// answer ended before the kill.
absl::StatusOr<ChaosReport> RunChaos(const ChaosPlan& plan, const ChaosHooks& hooks,
                                     const Clock& clock);

// Two sentences for a person, and one object for a program.
std::string Describe(const ChaosReport& report);
std::string ToJson(const ChaosReport& report);

}  // namespace sluice::cli
