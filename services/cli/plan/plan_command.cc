// sluice plan: how many tokens of KV cache fit beside a model's weights.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "formats/json.h"
#include "formats/mapped_file.h"
#include "model/model_files.h"
#include "model/plan/plan.h"
#include "model/plan/published.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

constexpr uint64_t kConfigBytesMax = 4u << 20;

struct PlanFlags {
  std::string model;
  std::string weights;
  std::string index_keys = "all";
  double memory_fraction = 0;
  int32_t tp = 0;  // 0: all gpus
  bool json = false;
  model::PlanOptions options;
};

// A published name, a config.json, or a model's folder or file.
absl::StatusOr<model::PublishedModel> ReadModel(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::exists(model, error)) return model::FindPublishedModel(model);
  model::PublishedModel result;
  result.weights = "bf16";
  if (!absl::EndsWith(model, ".json")) {
    SLUICE_ASSIGN_OR_RETURN(result.config, model::ReadModelConfig(model));
    return result;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(model, kConfigBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const formats::JsonValue config, formats::ParseJson(text, model));
  const std::string folder = std::filesystem::path(model).parent_path().filename();
  SLUICE_ASSIGN_OR_RETURN(result.config, model::ConfigFromHf(config, nullptr, folder));
  return result;
}

std::string PlanJson(const model::ModelConfig& config, const model::PlanOptions& options,
                     const model::Plan& plan) {
  json::array terms;
  for (const model::PlanTerm& term : plan.terms) {
    terms.push_back(
        {{"name", term.name}, {"value", term.value}, {"unit", term.unit}, {"note", term.note}});
  }
  const json::object object = {
      {"model", config.name},
      {"gpu", options.gpu},
      {"gpus", options.gpus},
      {"tp", options.tp},
      {"weights", options.weights},
      {"kv", options.kv},
      {"parameters", plan.parameters},
      {"checkpoint_bytes", plan.checkpoint_bytes},
      {"weight_bytes_per_gpu", plan.weight_bytes_per_gpu},
      {"memory_fraction", plan.memory_fraction},
      {"kv_pool_bytes_per_gpu", plan.kv_pool_bytes_per_gpu},
      {"kv_bytes_per_token", plan.kv_bytes_per_token},
      {"kv_tokens", plan.kv_tokens},
      {"copies", plan.copies},
      {"terms", std::move(terms)},
  };
  return json::serialize(object);
}

std::string ValueOf(const model::PlanTerm& term) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  if (term.unit == "parameters") return absl::StrFormat("%.3f G", term.value / 1e9);
  if (term.unit == "bytes" && std::abs(term.value) >= 1e6) {
    return absl::StrFormat("%.2f GiB", term.value / kGiB);
  }
  return absl::StrFormat("%.6g %s", term.value, term.unit);
}

void PrintTable(const model::ModelConfig& config, const model::PlanOptions& options,
                const model::Plan& plan) {
  PrintLine(absl::StrFormat("%s  weights %s  kv %s  %d x %s, tp %d", config.name, options.weights,
                            options.kv, options.gpus, options.gpu, options.tp));
  for (const model::PlanTerm& term : plan.terms) {
    PrintLine(absl::StrFormat("  %-46s %14s  %s", term.name, ValueOf(term), term.note));
  }
  PrintLine(
      absl::StrFormat("%d tokens of KV cache%s", plan.kv_tokens,
                      plan.copies > 1 ? absl::StrCat(" in each of ", plan.copies, " copies") : ""));
}

absl::Status RunPlan(PlanFlags flags) {
  SLUICE_ASSIGN_OR_RETURN(const model::PublishedModel model, ReadModel(flags.model));
  model::PlanOptions& options = flags.options;
  options.weights = flags.weights.empty() ? model.weights : flags.weights;
  options.tp = flags.tp > 0 ? flags.tp : options.gpus;
  if (flags.memory_fraction > 0) options.memory_fraction = flags.memory_fraction;
  options.index_every_layer = flags.index_keys == "all";
  SLUICE_ASSIGN_OR_RETURN(const model::Plan plan, model::MakePlan(model.config, options));
  if (flags.json) {
    PrintLine(PlanJson(model.config, options, plan));
  } else {
    PrintTable(model.config, options, plan);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      app.add_subcommand("plan", "Tokens of KV cache that fit beside a model on GPUs");
  model::PlanOptions& options = flags->options;
  command->add_option("--model", flags->model, "Published name, config.json, folder or GGUF file")
      ->required();
  command->add_option("--gpu", options.gpu, "h100, h200, b200, b300")->capture_default_str();
  command->add_option("--gpus", options.gpus, "GPUs in all")->capture_default_str();
  command->add_option("--tp", flags->tp, "GPUs that share one copy of the weights")
      ->check(CLI::Range(1, 1024))
      ->default_str("all");
  command->add_option("--weights", flags->weights,
                      "bf16, fp8, fp8-channel, int4, nvfp4; default: as published");
  command
      ->add_option("--kv", options.kv,
                   "bf16, fp8 (scales outside), or a page format of this kind of attention")
      ->capture_default_str();
  command
      ->add_option("--memory-fraction", flags->memory_fraction,
                   "Of the free memory; default: 1 - reserves / memory")
      ->check(CLI::Range(0.01, 1.0));
  command->add_option("--chunk-tokens", options.prefill_chunk_tokens, "Longest prefill chunk")
      ->capture_default_str();
  command->add_option("--batch", options.decode_batch_max, "Largest decode batch")
      ->capture_default_str();
  command
      ->add_option("--index-keys", flags->index_keys,
                   "Layers that store index keys: all, or those that compute them")
      ->check(CLI::IsMember({"all", "computing"}))
      ->capture_default_str();
  command->add_flag("--mtp", options.mtp, "Load the draft layers too");
  command->add_flag("--json", flags->json, "One JSON object instead of a table");
  command->footer(
      "Example:\n  sluice plan --model kimi-k2.6 --gpu h200 --gpus 8 --tp 8 --weights int4 --kv "
      "mla_fp8 --json");
  command->callback([flags, run] { *run = [flags] { return RunPlan(*flags); }; });
}

}  // namespace sluice::cli
