// What is kept of one request of a load test, and what all of them together say. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::cli {

// One request, filled as its stream arrives. Thread-compatible.
struct RequestRecord {
  size_t tenant = 0;
  uint32_t wanted_tokens = 0;  // of output
  absl::Time due;              // when the plan wanted it sent
  absl::Time sent;
  absl::Time first;  // first message with tokens
  absl::Time last;   // last message with tokens
  absl::Time end;
  std::vector<float> gaps_ms;  // between messages with tokens
  uint32_t output_tokens = 0;
  v1::Usage usage;
  std::string error;  // reason; empty: completed

  void OnTokens(uint32_t tokens, absl::Time now);
  // OK with another number of tokens than wanted is an error, too.
  void OnEnd(const absl::Status& status, absl::Time now);

  bool completed() const { return error.empty(); }
  double ttft_ms() const { return absl::ToDoubleMilliseconds(first - sent); }
  double e2e_ms() const { return absl::ToDoubleMilliseconds(end - sent); }
  // Mean time of a token after the first; 0 when there is only one.
  double tpot_ms() const;
};

// The name of the typed reason of a failure ("OVERLOADED"), "UNREACHABLE" where no service made it.
std::string ReasonOf(const absl::Status& status);

struct Distribution {
  size_t count = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// Percentiles by linear interpolation between ranks; all zero without samples.
Distribution Summarise(std::vector<double> samples);

// What a request must keep to count as good. Absent: no limit.
struct Goodput {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> itl_ms;  // kept by 99 % of the gaps of the request
  std::optional<double> e2e_ms;
};

// "ttft:500,itl:50" with the keys ttft, tpot, itl, e2e. Errors: INVALID_ARGUMENT naming the part.
absl::StatusOr<Goodput> ParseGoodput(absl::string_view text);
bool IsGood(const RequestRecord& record, const Goodput& goodput);

struct LoadSummary {
  uint64_t completed = 0;
  uint64_t failed = 0;
  std::map<std::string, uint64_t> errors;  // by reason
  absl::Duration duration;
  uint64_t input_tokens = 0;  // of completed requests, as all that follow
  uint64_t output_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t recomputed_tokens = 0;
  Distribution ttft_ms;
  Distribution tpot_ms;
  Distribution itl_ms;
  Distribution e2e_ms;
  Distribution send_delay_ms;  // of all: sent later than planned
  Distribution failure_ms;     // of the failed: sent to end
  absl::Duration sending;      // of all: from the first that was due to the last that was sent
  uint64_t good = 0;           // completed and within the goodput limits
};

// Of the records of one tenant, or of all without `tenant`. `duration` is that of the whole test.
LoadSummary SummariseRecords(absl::Span<const RequestRecord> records, std::optional<size_t> tenant,
                             absl::Duration duration, const Goodput& goodput);

}  // namespace sluice::cli
