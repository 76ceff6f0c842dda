#include "services/cli/load/dataset.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "services/cli/flag_range.h"

namespace sluice::cli {
namespace {

// Keeps the seeds of different kinds of runs apart.
enum class SeedSpace : uint64_t { kUnique = 1, kPrefix = 2, kTraceBlock = 3 };

uint64_t SeedOf(const DatasetOptions& options, SeedSpace space, uint64_t index) {
  return Mix64(Mix64(options.seed + 1) ^ Mix64((static_cast<uint64_t>(space) << 56) + index));
}

absl::Status Validate(const DatasetOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckRange("--num-requests", options.num_requests, 1, kRequestsMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--input-len", options.input_tokens, 1, kTurnTokensMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--output-len", options.output_tokens, 1, kTurnTokensMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--prefix-len", options.prefix_tokens, 0, kTurnTokensMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--groups", options.groups, 1, kRequestsMax));
  SLUICE_RETURN_IF_ERROR(CheckRange("--turns", options.turns, 1, kRequestsMax));
  const uint32_t scale = options.trace_scale;
  if (scale == 0 || kTraceBlockTokens % scale != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace-scale is ", scale, "; it must be a power of two up to 512"));
  }
  if (!(options.range_ratio > 0 && options.range_ratio <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--range-ratio is ", options.range_ratio, "; it must be in (0, 1]"));
  }
  return absl::OkStatus();
}

class Lengths {
 public:
  explicit Lengths(const DatasetOptions& options)
      : ratio_(options.range_ratio), random_(options.seed) {}
  uint32_t Draw(uint32_t most) {
    const auto least = static_cast<uint32_t>(std::max(1.0, std::ceil(ratio_ * most)));
    return least + static_cast<uint32_t>(random_.Below(most - least + 1));
  }
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_.Below(bound)); }

 private:
  const double ratio_;
  SeededRandom random_;
};

absl::Status CheckContext(uint64_t tokens, uint32_t context_tokens) {
  if (tokens <= context_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a request of this dataset has up to ", tokens,
                   " tokens of prompt and output; the model's context is ", context_tokens,
                   ": lower --input-len, --output-len, --prefix-len or --turns"));
}

std::vector<LoadSession> SingleTurns(const DatasetOptions& options) {
  Lengths lengths(options);
  const bool shared = options.kind == DatasetKind::kSharedPrefix && options.prefix_tokens > 0;
  std::vector<LoadSession> sessions(options.num_requests);
  for (uint32_t i = 0; i < options.num_requests; ++i) {
    Turn turn;
    if (shared) {
      const uint32_t group = lengths.Below(options.groups);
      turn.input.push_back({SeedOf(options, SeedSpace::kPrefix, group), options.prefix_tokens});
    }
    turn.input.push_back(
        {SeedOf(options, SeedSpace::kUnique, i), lengths.Draw(options.input_tokens)});
    turn.output_tokens = lengths.Draw(options.output_tokens);
    sessions[i].turns.push_back(std::move(turn));
  }
  return sessions;
}

std::vector<LoadSession> Agents(const DatasetOptions& options) {
  Lengths lengths(options);
  std::vector<LoadSession> sessions;
  for (uint32_t i = 0; i < options.num_requests; ++i) {
    Turn turn;
    if (i % options.turns == 0) {
      sessions.emplace_back();
      if (options.prefix_tokens > 0) {
        turn.input.push_back({SeedOf(options, SeedSpace::kPrefix, 0), options.prefix_tokens});
      }
    }
    turn.input.push_back(
        {SeedOf(options, SeedSpace::kUnique, i), lengths.Draw(options.input_tokens)});
    turn.output_tokens = lengths.Draw(options.output_tokens);
    sessions.back().turns.push_back(std::move(turn));
  }
  return sessions;
}

absl::StatusOr<std::vector<LoadSession>> FromTrace(const DatasetOptions& options,
                                                   absl::Span<const TraceLine> trace,
                                                   uint32_t context_tokens, uint32_t* left_out) {
  const uint32_t scale = options.trace_scale;
  const auto scaled = [scale](uint32_t tokens) { return (tokens + scale - 1) / scale; };
  std::vector<LoadSession> sessions;
  uint32_t too_long = 0;
  for (const TraceLine& line : trace) {
    if (sessions.size() == options.num_requests) break;
    uint32_t left = scaled(line.input_tokens);
    Turn turn;
    turn.output_tokens = std::max(1u, scaled(line.output_tokens));
    if (uint64_t{left} + turn.output_tokens > context_tokens) {
      ++too_long;
      continue;
    }
    for (uint64_t block : line.blocks) {
      const uint32_t tokens = std::min(left, kTraceBlockTokens / scale);
      turn.input.push_back({SeedOf(options, SeedSpace::kTraceBlock, block), tokens});
      left -= tokens;
    }
    LoadSession session;
    session.turns.push_back(std::move(turn));
    session.arrival = absl::Milliseconds(line.timestamp_ms - trace.front().timestamp_ms);
    sessions.push_back(std::move(session));
  }
  if (left_out != nullptr) *left_out = too_long;
  if (sessions.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no request of the trace fits the model's context of ", context_tokens,
                     " tokens; raise --trace-scale (now ", scale, ") to divide the lengths"));
  }
  return sessions;
}

}  // namespace

absl::StatusOr<DatasetKind> ParseDatasetKind(absl::string_view name) {
  if (name == "random") return DatasetKind::kRandom;
  if (name == "shared-prefix") return DatasetKind::kSharedPrefix;
  if (name == "agent") return DatasetKind::kAgent;
  if (name == "trace") return DatasetKind::kTrace;
  return absl::InvalidArgumentError(
      absl::StrCat("--dataset is '", name, "'; use random, shared-prefix, agent or trace"));
}

absl::StatusOr<std::vector<LoadSession>> MakeDataset(const DatasetOptions& options,
                                                     absl::Span<const TraceLine> trace,
                                                     uint32_t context_tokens, uint32_t* left_out) {
  if (left_out != nullptr) *left_out = 0;
  SLUICE_RETURN_IF_ERROR(Validate(options));
  const uint64_t turn_tokens = uint64_t{options.input_tokens} + options.output_tokens;
  switch (options.kind) {
    case DatasetKind::kRandom:
      SLUICE_RETURN_IF_ERROR(CheckContext(turn_tokens, context_tokens));
      return SingleTurns(options);
    case DatasetKind::kSharedPrefix:
      SLUICE_RETURN_IF_ERROR(CheckContext(options.prefix_tokens + turn_tokens, context_tokens));
      return SingleTurns(options);
    case DatasetKind::kAgent:
      SLUICE_RETURN_IF_ERROR(
          CheckContext(options.prefix_tokens + options.turns * turn_tokens, context_tokens));
      return Agents(options);
    case DatasetKind::kTrace:
      return FromTrace(options, trace, context_tokens, left_out);
  }
  return absl::InternalError("unknown dataset");
}

void AppendTokens(const TokenRun& run, uint32_t vocabulary, std::vector<uint32_t>* tokens) {
  SeededRandom random(run.seed);
  tokens->reserve(tokens->size() + run.tokens);
  for (uint32_t i = 0; i < run.tokens; ++i) {
    tokens->push_back(static_cast<uint32_t>(random.Below(vocabulary)));
  }
}

}  // namespace sluice::cli
