// sluice bench transfer: flags, and how the figures are written.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "services/cli/command.h"
#include "services/cli/transfer_bench/transfer_bench.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

absl::Status BenchTransfer(const TransferBenchOptions& options, bool as_json) {
  SLUICE_ASSIGN_OR_RETURN(const TransferBenchReport report, RunTransferBench(options));
  PrintLine(as_json ? TransferBenchJson(report) : TransferBenchTable(report));
  return absl::OkStatus();
}

}  // namespace

std::string TransferBenchJson(const TransferBenchReport& report) {
  json::array figures;
  for (const TransferFigure& figure : report.figures) {
    figures.push_back({{"transport", figure.transport},
                       {"verb", figure.verb},
                       {"piece_bytes", figure.piece_bytes},
                       {"gb_per_s", figure.gb_per_s},
                       {"share", figure.share}});
  }
  return json::serialize(
      json::object{{"copy_gb_per_s", report.copy_gb_per_s}, {"figures", std::move(figures)}});
}

std::string TransferBenchTable(const TransferBenchReport& report) {
  std::string out = absl::StrFormat(
      "one thread copies %.1f GB/s\ntransport   verb   piece KiB    GB/s  of a copy",
      report.copy_gb_per_s);
  for (const TransferFigure& figure : report.figures) {
    absl::StrAppendFormat(&out, "\n%-11s %-6s %9d %7.2f  %7.0f %%", figure.transport, figure.verb,
                          figure.piece_bytes >> 10, figure.gb_per_s, 100 * figure.share);
  }
  return out;
}

void AddBenchTransferCommand(CLI::App& bench, Command* run) {
  auto options = std::make_shared<TransferBenchOptions>();
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = bench.add_subcommand(
      "transfer", "How fast pages move between two transports of this machine");
  command
      ->add_option("--transport", options->transports,
                   "shm, tls, tcp or ucx-rdma, comma-separated; default: all that need no adapter")
      ->delimiter(',');
  command->add_option("--piece-kib", options->pieces_kib, "Sizes of pieces, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--bytes", options->bytes, "Moved for each figure; also as 1gb")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command
      ->add_option("--region-mib", options->region_mib,
                   "Memory that pieces lie in; more than the caches hold")
      ->capture_default_str();
  command->add_option("--repetitions", options->repetitions, "Runs of each; the median is kept")
      ->capture_default_str();
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  sluice bench transfer\n"
      "  sluice bench transfer --transport shm --piece-kib 256 --bytes 4gb --json");
  command->callback(
      [options, as_json, run] { *run = [=] { return BenchTransfer(*options, *as_json); }; });
}

}  // namespace sluice::cli
