#include <boost/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/cli/engine_bench/engine_bench.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

double SecondsPerThousand(const Stretch& stretch) { return 1000.0 / stretch.tokens_per_s(); }

double PricePerMillion(const Stretch& stretch, double price_per_hour) {
  return price_per_hour / 3600.0 * 1e6 / stretch.tokens_per_s();
}

double WeightsGbPerS(const Stretch& stretch) {
  return static_cast<double>(stretch.weight_bytes) / absl::ToDoubleSeconds(stretch.took) / 1e9;
}

// {"prefill": f(prefill), "decode": {"1": f(batch 1), ...}}
template <typename F>
json::object ByPart(const EngineBenchReport& report, F&& f) {
  json::object decode;
  for (const DecodeFigure& figure : report.decode) {
    decode[absl::StrCat(figure.batch)] = f(figure.stretch);
  }
  return {{"prefill", f(report.prefill)}, {"decode", std::move(decode)}};
}

}  // namespace

std::string EngineBenchJson(const EngineBenchReport& report, double price_per_hour) {
  json::object decode;
  for (const DecodeFigure& figure : report.decode) {
    decode[absl::StrCat(figure.batch)] = figure.stretch.tokens_per_s();
  }
  json::object cost = {{"seconds_per_1k_tokens", ByPart(report, SecondsPerThousand)}};
  if (price_per_hour > 0) {
    cost["price_per_hour"] = price_per_hour;
    cost["price_per_1m_tokens"] = ByPart(
        report, [price_per_hour](const Stretch& s) { return PricePerMillion(s, price_per_hour); });
  }
  const EngineBenchOptions& options = report.options;
  const json::object object = {
      {"prefill_tps", report.prefill.tokens_per_s()},
      {"decode_tps", std::move(decode)},
      {"cost", std::move(cost)},
      {"step_ms", ByPart(report, [](const Stretch& s) { return s.step_ms(); })},
      {"weight_bytes_per_step",
       ByPart(report, [](const Stretch& s) { return s.weight_bytes_per_step(); })},
      {"weights_gb_per_s", ByPart(report, WeightsGbPerS)},
      {"read_gb_per_s", report.read_gb_per_s},
      {"model", report.model},
      {"kernels", report.kernels},
      {"kv", report.kv_format},
      {"threads", report.threads},
      {"prompt", options.prompt_tokens},
      {"gen", options.gen_tokens},
      {"depth", options.depth_tokens},
      {"repetitions", options.repetitions},
  };
  return json::serialize(object);
}

std::string EngineBenchTable(const EngineBenchReport& report, double price_per_hour) {
  const EngineBenchOptions& options = report.options;
  std::string text = absl::StrFormat(
      "%s  kernels %s  kv %s  %d threads  memory read %.1f GB/s  median of %d\n", report.model,
      report.kernels, report.kv_format, report.threads, report.read_gb_per_s, options.repetitions);
  absl::StrAppendFormat(&text, "%-22s %10s %9s %13s %12s %10s%s\n", "", "tokens/s", "step ms",
                        "weights/step", "weights GB/s", "s/1k tok",
                        price_per_hour > 0 ? "   price/1M" : "");
  const auto row = [&](const std::string& name, const Stretch& stretch) {
    absl::StrAppendFormat(&text, "%-22s %10.1f %9.2f %10.2f MB %12.1f %10.3f", name,
                          stretch.tokens_per_s(), stretch.step_ms(),
                          stretch.weight_bytes_per_step() / 1e6, WeightsGbPerS(stretch),
                          SecondsPerThousand(stretch));
    if (price_per_hour > 0) {
      absl::StrAppendFormat(&text, " %10.4f", PricePerMillion(stretch, price_per_hour));
    }
    text += '\n';
  };
  row(absl::StrCat("prefill ", options.prompt_tokens), report.prefill);
  for (const DecodeFigure& figure : report.decode) {
    row(absl::StrCat("decode batch ", figure.batch), figure.stretch);
  }
  text.pop_back();
  return text;
}

}  // namespace sluice::cli
