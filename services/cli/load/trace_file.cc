#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "formats/json.h"
#include "services/cli/load/dataset.h"

namespace sluice::cli {
namespace {

absl::StatusOr<TraceLine> ParseLine(absl::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const auto value, formats::ParseJson(text, "trace"));
  TraceLine line;
  SLUICE_ASSIGN_OR_RETURN(line.timestamp_ms, value.GetInt("timestamp"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t input, value.GetInt("input_length"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t output, value.GetInt("output_length"));
  if (input < 1 || input > kTurnTokensMax || output < 0 || output > kTurnTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("lengths are ", input, " and ", output, "; at most ", kTurnTokensMax));
  }
  line.input_tokens = static_cast<uint32_t>(input);
  line.output_tokens = static_cast<uint32_t>(output);
  SLUICE_ASSIGN_OR_RETURN(const formats::JsonValue* blocks, value.Get("hash_ids"));
  for (const formats::JsonValue& block : blocks->array()) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t id, block.AsInt());
    line.blocks.push_back(static_cast<uint64_t>(id));
  }
  const uint64_t wanted = (line.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (line.blocks.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("hash_ids has ", line.blocks.size(), " blocks; ",
                                                   input, " tokens fill ", wanted, " of ",
                                                   kTraceBlockTokens));
  }
  return line;
}

}  // namespace

absl::StatusOr<std::vector<TraceLine>> ParseTrace(absl::string_view text, uint32_t lines_max) {
  std::vector<TraceLine> lines;
  uint32_t number = 0;
  int64_t last_ms = std::numeric_limits<int64_t>::min();
  for (absl::string_view part : absl::StrSplit(text, '\n')) {
    ++number;
    if (part.empty()) continue;
    if (lines.size() == lines_max) break;
    auto line = ParseLine(part);
    if (line.ok() && line->timestamp_ms < last_ms) {
      line = absl::InvalidArgumentError("timestamps run backwards");
    }
    if (!line.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--trace: line ", number, ": ", line.status().message()));
    }
    last_ms = line->timestamp_ms;
    lines.push_back(*std::move(line));
  }
  if (lines.empty()) return absl::InvalidArgumentError("--trace: the file has no requests");
  return lines;
}

}  // namespace sluice::cli
