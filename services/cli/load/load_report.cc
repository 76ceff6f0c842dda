#include "services/cli/load/load_report.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

double PerSecond(uint64_t count, absl::Duration duration) {
  return duration > absl::ZeroDuration()
             ? static_cast<double>(count) / absl::ToDoubleSeconds(duration)
             : 0;
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

json::object ToJson(const Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90},    {"p95", d.p95},
          {"p99", d.p99},   {"max", d.max}, {"count", d.count}};
}

json::value LimitJson(const std::optional<double>& limit) {
  return limit ? json::value(*limit) : json::value();
}

json::object ToJson(const LoadSummary& summary, const std::optional<Goodput>& goodput) {
  json::object errors;
  for (const auto& [reason, count] : summary.errors) errors[reason] = count;
  json::object object = {
      {"completed", summary.completed},
      {"failed", summary.failed},
      {"errors", std::move(errors)},
      {"input_tokens", summary.input_tokens},
      {"output_tokens", summary.output_tokens},
      {"cached_tokens", summary.cached_tokens},
      {"recomputed_tokens", summary.recomputed_tokens},
      {"cache_hit_rate", Share(summary.cached_tokens, summary.input_tokens)},
      {"request_throughput", PerSecond(summary.completed, summary.duration)},
      {"input_throughput", PerSecond(summary.input_tokens, summary.duration)},
      {"output_throughput", PerSecond(summary.output_tokens, summary.duration)},
      {"ttft_ms", ToJson(summary.ttft_ms)},
      {"tpot_ms", ToJson(summary.tpot_ms)},
      {"itl_ms", ToJson(summary.itl_ms)},
      {"e2e_ms", ToJson(summary.e2e_ms)},
      {"send_delay_ms", ToJson(summary.send_delay_ms)},
      {"failure_ms", ToJson(summary.failure_ms)},
      {"sending_s", absl::ToDoubleSeconds(summary.sending)},
      {"goodput", json::value()},
  };
  if (goodput) {
    object["goodput"] = json::object{
        {"good", summary.good},
        {"share", Share(summary.good, summary.completed + summary.failed)},
        {"per_s", PerSecond(summary.good, summary.duration)},
        {"ttft_ms", LimitJson(goodput->ttft_ms)},
        {"tpot_ms", LimitJson(goodput->tpot_ms)},
        {"itl_ms", LimitJson(goodput->itl_ms)},
        {"e2e_ms", LimitJson(goodput->e2e_ms)},
    };
  }
  return object;
}

LoadSummary SummaryOf(const LoadDescription& description, const LoadRun& run,
                      std::optional<size_t> tenant) {
  return SummariseRecords(run.records, tenant, run.duration,
                          description.goodput.value_or(Goodput()));
}

std::string TenantName(size_t index) { return absl::StrCat(index + 1); }

std::string RateText(const LoadDescription& description) {
  if (description.request_rate == 0) return "as in the trace";
  if (std::isinf(description.request_rate)) return "unlimited";
  return absl::StrFormat("%g/s", description.request_rate);
}

void AppendSummary(const LoadSummary& summary, const std::optional<Goodput>& goodput,
                   std::string* text) {
  absl::StrAppendFormat(
      text,
      "%d completed, %d failed   %.2f requests/s   %.1f output tokens/s   %.1f input tokens/s\n",
      summary.completed, summary.failed, PerSecond(summary.completed, summary.duration),
      PerSecond(summary.output_tokens, summary.duration),
      PerSecond(summary.input_tokens, summary.duration));
  absl::StrAppendFormat(text, "%d input tokens, %d of them cached (%.1f %%), %d output tokens\n",
                        summary.input_tokens, summary.cached_tokens,
                        100 * Share(summary.cached_tokens, summary.input_tokens),
                        summary.output_tokens);
  absl::StrAppendFormat(text, "%-14s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p95",
                        "p99", "max");
  const auto row = [text](const char* name, const Distribution& d) {
    absl::StrAppendFormat(text, "%-14s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, d.mean, d.p50,
                          d.p90, d.p95, d.p99, d.max);
  };
  row("TTFT", summary.ttft_ms);
  row("TPOT", summary.tpot_ms);
  row("ITL", summary.itl_ms);
  row("E2E", summary.e2e_ms);
  row("send delay", summary.send_delay_ms);
  if (summary.failed > 0) row("failed after", summary.failure_ms);
  if (goodput) {
    absl::StrAppendFormat(text, "goodput %d requests (%.1f %%), %.2f/s\n", summary.good,
                          100 * Share(summary.good, summary.completed + summary.failed),
                          PerSecond(summary.good, summary.duration));
  }
  for (const auto& [reason, count] : summary.errors) {
    absl::StrAppendFormat(text, "error %s: %d\n", reason, count);
  }
}

}  // namespace

std::string LoadReportJson(const LoadDescription& description, const LoadRun& run) {
  json::object object = ToJson(SummaryOf(description, run, std::nullopt), description.goodput);
  object["dataset"] = description.dataset;
  object["model"] = description.model;
  object["request_rate"] = std::isfinite(description.request_rate) && description.request_rate > 0
                               ? json::value(description.request_rate)
                               : json::value();
  object["max_concurrency"] = description.max_concurrency;
  object["peak_concurrency"] = run.peak_in_flight;
  object["seed"] = description.seed;
  object["duration_s"] = absl::ToDoubleSeconds(run.duration);
  object["not_sent"] = run.not_sent;
  object["left_out"] = description.left_out;
  json::object tenants;
  for (size_t i = 0; i < description.tenants; ++i) {
    tenants[TenantName(i)] = ToJson(SummaryOf(description, run, i), description.goodput);
  }
  object["tenants"] = std::move(tenants);
  return json::serialize(object);
}

std::string LoadReportTable(const LoadDescription& description, const LoadRun& run) {
  std::string text =
      absl::StrFormat("%s  %s  rate %s  at most %d at once (peak %d)  %.1f s\n", description.model,
                      description.dataset, RateText(description), description.max_concurrency,
                      run.peak_in_flight, absl::ToDoubleSeconds(run.duration));
  if (description.left_out > 0) {
    absl::StrAppendFormat(&text, "%d requests of the trace do not fit the context: left out\n",
                          description.left_out);
  }
  if (run.not_sent > 0) absl::StrAppendFormat(&text, "%d requests were not sent\n", run.not_sent);
  AppendSummary(SummaryOf(description, run, std::nullopt), description.goodput, &text);
  for (size_t i = 0; description.tenants > 1 && i < description.tenants; ++i) {
    absl::StrAppend(&text, "tenant ", TenantName(i), "\n");
    AppendSummary(SummaryOf(description, run, i), description.goodput, &text);
  }
  text.pop_back();
  return text;
}

std::string ProgressLine(const LoadProgress& progress, int width) {
  const uint64_t total = std::max<uint64_t>(progress.total, 1);
  const auto filled = static_cast<size_t>(progress.ended * static_cast<uint64_t>(width) / total);
  return absl::StrFormat(
      "[%s%s] %d/%d  %d running  %d failed  %.1f tokens/s", std::string(filled, '#'),
      std::string(static_cast<size_t>(width) - filled, ' '), progress.ended, progress.total,
      progress.in_flight, progress.failed, PerSecond(progress.output_tokens, progress.elapsed));
}

}  // namespace sluice::cli
