// sluice bench engine: flags, and where the figures go.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/status_macros.h"
#include "services/cli/command.h"
#include "services/cli/engine_bench/engine_bench.h"

namespace sluice::cli {
namespace {

struct EngineBenchFlags {
  EngineBenchOptions options;
  double price_per_hour = 0;
  bool json = false;
};

absl::Status BenchEngine(const EngineBenchFlags& flags) {
  const auto progress = [](absl::string_view line) {
    std::fprintf(stderr, "%s\n", std::string(line).c_str());
  };
  SLUICE_ASSIGN_OR_RETURN(const EngineBenchReport report, RunEngineBench(flags.options, progress));
  PrintLine(flags.json ? EngineBenchJson(report, flags.price_per_hour)
                       : EngineBenchTable(report, flags.price_per_hour));
  return absl::OkStatus();
}

}  // namespace

void AddBenchEngineCommand(CLI::App& bench, Command* run) {
  auto flags = std::make_shared<EngineBenchFlags>();
  CLI::App* command = bench.add_subcommand(
      "engine", "Prefill and decode rates of one engine in this process, without a cluster");
  EngineBenchOptions& options = flags->options;
  AddModelOptions(*command, &options.model);
  command->add_option("--prompt", options.prompt_tokens, "Tokens of the timed prompt")
      ->capture_default_str();
  command->add_option("--gen", options.gen_tokens, "Timed output tokens of each sequence")
      ->capture_default_str();
  command->add_option("--batch", options.batches, "Sequences decoded at once, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--depth", options.depth_tokens, "Context in which a decode begins")
      ->capture_default_str();
  command->add_option("--repetitions", options.repetitions, "Runs of each; the median is kept")
      ->capture_default_str();
  command->add_option("--seed", options.seed, "Of the prompts' token ids")->capture_default_str();
  command->add_option("--price-per-hour", flags->price_per_hour, "Of this machine: adds cost")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  sluice bench engine --model model.gguf\n"
      "  sluice bench engine --model model.gguf --batch 1,16 --threads 2 --json\n"
      "  sluice bench engine --model model.gguf --depth 2048 --kv bf16 --price-per-hour 1.2");
  command->callback([flags, run] { *run = [flags] { return BenchEngine(*flags); }; });
}

}  // namespace sluice::cli
