// sluice bench kernels: flags, and how the figures are written.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "services/cli/command.h"
#include "services/cli/kernel_bench/kernel_bench.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

const char* NameOf(kernels::ActivationKind kind) {
  if (kind == kernels::ActivationKind::kInt8) return "int8";
  return kind == kernels::ActivationKind::kInt16 ? "int16" : "float32";
}

absl::Status BenchKernels(const KernelBenchOptions& options, bool as_json) {
  SLUICE_ASSIGN_OR_RETURN(const KernelBenchReport report, RunKernelBench(options));
  PrintLine(as_json ? KernelBenchJson(report) : KernelBenchTable(report));
  return absl::OkStatus();
}

}  // namespace

std::string KernelBenchJson(const KernelBenchReport& report) {
  json::array linear;
  for (const KernelFigure& figure : report.linear) {
    const absl::string_view format = kernels::WeightFormatName(figure.format);
    linear.push_back({{"format", json::string_view(format.data(), format.size())},
                      {"activations", NameOf(figure.activations)},
                      {"rows", figure.rows},
                      {"matrix_us", figure.matrix_us},
                      {"gb_per_s", figure.gb_per_s},
                      {"gops", figure.gops},
                      {"roof", figure.roof},
                      {"share", figure.share}});
  }
  const json::object object = {{"kernels", report.kernels},
                               {"threads", report.threads},
                               {"read_gb_per_s", report.read_gb_per_s},
                               {"peak_gops",
                                {{"float32", report.peak_gops[0]},
                                 {"int16", report.peak_gops[1]},
                                 {"int8", report.peak_gops[2]}}},
                               {"linear", std::move(linear)}};
  return json::serialize(object);
}

std::string KernelBenchTable(const KernelBenchReport& report) {
  std::string out = absl::StrFormat(
      "%s, %d threads: memory %.1f GB/s, float32 %.0f, int16 %.0f, int8 %.0f GOP/s\n"
      "format         activations  rows  matrix us    GB/s    GOP/s  of the roof",
      report.kernels, report.threads, report.read_gb_per_s, report.peak_gops[0],
      report.peak_gops[1], report.peak_gops[2]);
  for (const KernelFigure& figure : report.linear) {
    absl::StrAppendFormat(&out, "\n%-14s %-11s %5d %10.1f %7.1f %8.1f  %3.0f %% of %s",
                          std::string(kernels::WeightFormatName(figure.format)),
                          NameOf(figure.activations), figure.rows, figure.matrix_us,
                          figure.gb_per_s, figure.gops, 100 * figure.share, figure.roof);
  }
  return out;
}

void AddBenchKernelsCommand(CLI::App& bench, Command* run) {
  auto options = std::make_shared<KernelBenchOptions>();
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = bench.add_subcommand(
      "kernels", "Matrix kernels beside what memory and instructions of this machine allow");
  command->add_option("--kernels", options->kernels, "auto, reference, avx2 or avx512")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Compute threads; 0: every usable core")
      ->capture_default_str();
  command->add_option("--rows", options->rows, "Rows multiplied at once, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--memory-mib", options->memory_mib,
                   "Weights visited in turn; more than the caches hold")
      ->capture_default_str();
  command->add_option("--repetitions", options->repetitions, "Runs of each; the median is kept")
      ->capture_default_str();
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback(
      [options, as_json, run] { *run = [=] { return BenchKernels(*options, *as_json); }; });
}

}  // namespace sluice::cli
