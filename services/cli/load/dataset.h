// What a load test asks: sessions of turns, described by lengths and seeds, so that a plan of
// millions of prompt tokens is small and the same seed makes the same prompts. No time, no network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace sluice::cli {

// Tokens that depend on nothing but their seed and the vocabulary: equal seeds are equal prefixes.
struct TokenRun {
  uint64_t seed = 0;
  uint32_t tokens = 0;
};

struct Turn {
  // Appended to the session's tokens so far (prompts and answers); the whole is the prompt.
  std::vector<TokenRun> input;
  uint32_t output_tokens = 0;
};

// Turns of one session follow each other; sessions are independent.
struct LoadSession {
  std::vector<Turn> turns;
  absl::Duration arrival;  // of the first turn, from the start; set by the trace only
};

enum class DatasetKind {
  kRandom,        // every prompt is new
  kSharedPrefix,  // prompts of a group begin alike
  kAgent,         // sessions: a common beginning, then turns that each add to the conversation
  kTrace,         // lengths, times and shared blocks from a file
};

struct DatasetOptions {
  DatasetKind kind = DatasetKind::kRandom;
  uint32_t num_requests = 100;
  uint32_t input_tokens = 256;
  uint32_t output_tokens = 64;
  // Lengths are uniform between this share of input_tokens and output_tokens and the whole.
  double range_ratio = 1.0;
  uint32_t prefix_tokens = 512;  // shared-prefix, agent
  uint32_t groups = 8;           // shared-prefix: different prefixes
  uint32_t turns = 8;            // agent: requests of a session
  // trace: divides all lengths, block length included; a power of two up to 512.
  uint32_t trace_scale = 1;
  uint64_t seed = 1;
};

inline constexpr uint32_t kRequestsMax = 1'000'000;
inline constexpr uint32_t kTurnTokensMax = 1 << 24;

// One line of a trace: {"timestamp": ms, "input_length", "output_length", "hash_ids": one per block
// of 512 tokens}.
struct TraceLine {
  int64_t timestamp_ms = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t> blocks;
};
inline constexpr uint32_t kTraceBlockTokens = 512;

// Reads at most `lines_max` lines. Errors: INVALID_ARGUMENT with the line's number.
absl::StatusOr<std::vector<TraceLine>> ParseTrace(absl::string_view text, uint32_t lines_max);

absl::StatusOr<DatasetKind> ParseDatasetKind(absl::string_view name);

// The plan; num_requests turns in all. `trace` is used by kTrace only: its first num_requests lines
// that fit. Turns whose prompt and output exceed `context_tokens` are left out of a trace (counted
// in `left_out`, may be null) and are an error elsewhere. Errors: INVALID_ARGUMENT naming the flag.
absl::StatusOr<std::vector<LoadSession>> MakeDataset(const DatasetOptions& options,
                                                     absl::Span<const TraceLine> trace,
                                                     uint32_t context_tokens, uint32_t* left_out);

// Appends the run's tokens, each below `vocabulary` (> 0).
void AppendTokens(const TokenRun& run, uint32_t vocabulary, std::vector<uint32_t>* tokens);

}  // namespace sluice::cli
