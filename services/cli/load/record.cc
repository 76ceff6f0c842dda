#include "services/cli/load/record.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rpc/error.h"

namespace sluice::cli {
namespace {

// `sorted` must not be empty.
double Percentile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - std::floor(rank)) * (sorted[above] - sorted[below]);
}

}  // namespace

void RequestRecord::OnTokens(uint32_t tokens, absl::Time now) {
  if (tokens == 0) return;
  if (output_tokens == 0) {
    first = now;
  } else {
    gaps_ms.push_back(static_cast<float>(absl::ToDoubleMilliseconds(now - last)));
  }
  last = now;
  output_tokens += tokens;
}

void RequestRecord::OnEnd(const absl::Status& status, absl::Time now) {
  end = now;
  if (!status.ok()) {
    error = ReasonOf(status);
  } else if (output_tokens != wanted_tokens || output_tokens == 0) {
    error = "WRONG_LENGTH";
  }
}

double RequestRecord::tpot_ms() const {
  return output_tokens > 1 ? absl::ToDoubleMilliseconds(last - first) / (output_tokens - 1) : 0;
}

std::string ReasonOf(const absl::Status& status) {
  const v1::ErrorDetail detail = rpc::DetailOf(status);
  if (absl::IsUnavailable(status) && detail.source().empty()) return "UNREACHABLE";
  if (detail.reason() == v1::ERROR_REASON_UNSPECIFIED)
    return absl::StatusCodeToString(status.code());
  return v1::ErrorReason_Name(detail.reason());
}

Distribution Summarise(std::vector<double> samples) {
  Distribution result;
  result.count = samples.size();
  if (samples.empty()) return result;
  std::sort(samples.begin(), samples.end());
  result.mean =
      std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
  result.p50 = Percentile(samples, 0.50);
  result.p90 = Percentile(samples, 0.90);
  result.p95 = Percentile(samples, 0.95);
  result.p99 = Percentile(samples, 0.99);
  result.max = samples.back();
  return result;
}

absl::StatusOr<Goodput> ParseGoodput(absl::string_view text) {
  Goodput goodput;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    double limit = 0;
    std::optional<double>* field = pair.first == "ttft"   ? &goodput.ttft_ms
                                   : pair.first == "tpot" ? &goodput.tpot_ms
                                   : pair.first == "itl"  ? &goodput.itl_ms
                                   : pair.first == "e2e"  ? &goodput.e2e_ms
                                                          : nullptr;
    if (field == nullptr || !absl::SimpleAtod(pair.second, &limit) || !(limit > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--goodput: '", part, "' is no limit; write ttft:MS, tpot:MS, itl:MS or e2e:MS"));
    }
    *field = limit;
  }
  return goodput;
}

bool IsGood(const RequestRecord& record, const Goodput& goodput) {
  if (!record.completed()) return false;
  if (goodput.ttft_ms && record.ttft_ms() > *goodput.ttft_ms) return false;
  if (goodput.tpot_ms && record.tpot_ms() > *goodput.tpot_ms) return false;
  if (goodput.e2e_ms && record.e2e_ms() > *goodput.e2e_ms) return false;
  if (!goodput.itl_ms) return true;
  const auto over =
      static_cast<double>(std::count_if(record.gaps_ms.begin(), record.gaps_ms.end(),
                                        [&goodput](float gap) { return gap > *goodput.itl_ms; }));
  return over <= 0.01 * static_cast<double>(record.gaps_ms.size());
}

LoadSummary SummariseRecords(absl::Span<const RequestRecord> records, std::optional<size_t> tenant,
                             absl::Duration duration, const Goodput& goodput) {
  LoadSummary summary;
  summary.duration = duration;
  std::vector<double> ttft, tpot, itl, e2e, delay, failure;
  absl::Time first_due = absl::InfiniteFuture();
  absl::Time last_sent = absl::InfinitePast();
  for (const RequestRecord& record : records) {
    if (tenant && record.tenant != *tenant) continue;
    delay.push_back(absl::ToDoubleMilliseconds(record.sent - record.due));
    first_due = std::min(first_due, record.due);
    last_sent = std::max(last_sent, record.sent);
    if (!record.completed()) {
      failure.push_back(record.e2e_ms());
      ++summary.failed;
      ++summary.errors[record.error];
      continue;
    }
    ++summary.completed;
    summary.input_tokens += record.usage.prompt_tokens();
    summary.output_tokens += record.output_tokens;
    summary.cached_tokens += record.usage.cached_tokens();
    summary.recomputed_tokens += record.usage.recomputed_tokens();
    summary.good += IsGood(record, goodput) ? 1 : 0;
    ttft.push_back(record.ttft_ms());
    if (record.output_tokens > 1) tpot.push_back(record.tpot_ms());
    itl.insert(itl.end(), record.gaps_ms.begin(), record.gaps_ms.end());
    e2e.push_back(record.e2e_ms());
  }
  summary.ttft_ms = Summarise(std::move(ttft));
  summary.tpot_ms = Summarise(std::move(tpot));
  summary.itl_ms = Summarise(std::move(itl));
  summary.e2e_ms = Summarise(std::move(e2e));
  if (!delay.empty()) summary.sending = last_sent - first_due;
  summary.send_delay_ms = Summarise(std::move(delay));
  summary.failure_ms = Summarise(std::move(failure));
  return summary;
}

}  // namespace sluice::cli
