// sluice quantize: a model's folder with its weights in another format.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/cpu.h"
#include "device/thread_pool.h"
#include "model/quantize/quantize.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

struct QuantizeFlags {
  std::string model;
  std::string to;
  std::string out;
  int threads = 0;
};

absl::Status Quantize(const QuantizeFlags& flags) {
  const int workers = flags.threads > 0 ? flags.threads : device::UsableCpus();
  SLUICE_ASSIGN_OR_RETURN(const auto pool, device::ThreadPool::Create({.workers = workers}));
  model::QuantizeOptions options;
  options.to = flags.to == "fp8"        ? model::QuantizeTo::kFp8
               : flags.to == "int4"     ? model::QuantizeTo::kInt4
               : flags.to == "int4-all" ? model::QuantizeTo::kInt4All
                                        : model::QuantizeTo::kLossless;
  SLUICE_ASSIGN_OR_RETURN(const model::QuantizeReport report,
                          model::QuantizeFolder(flags.model, flags.out, options, *pool));
  PrintLine(boost::json::serialize(boost::json::object{{"quantized", report.quantized},
                                                       {"widened", report.widened},
                                                       {"copied", report.copied},
                                                       {"bytes_before", report.bytes_before},
                                                       {"bytes_after", report.bytes_after}}));
  return absl::OkStatus();
}

}  // namespace

void AddQuantizeCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command =
      app.add_subcommand("quantize", "Write a model's folder with its weights in another format");
  AddModelOption(*command, &flags->model, "Folder with config.json and safetensors")->required();
  command
      ->add_option(
          "--to", flags->to,
          "int4: routed experts, groups of 32; int4-all: every matrix of a layer but the router; "
          "fp8: the same in blocks of 128 x 128; lossless: BF16 in 12 bits")
      ->required()
      ->check(CLI::IsMember({"int4", "int4-all", "fp8", "lossless"}));
  command->add_option("--out", flags->out, "New folder")->required();
  command->add_option("--threads", flags->threads, "Threads; 0: every usable core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->footer("Example:\n  sluice quantize --model GLM-4.6 --to int4 --out GLM-4.6-int4");
  command->callback([flags, run] { *run = [flags] { return Quantize(*flags); }; });
}

}  // namespace sluice::cli
