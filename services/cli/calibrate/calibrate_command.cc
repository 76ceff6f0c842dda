// sluice calibrate: writes the centre vectors that centred KV formats subtract.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/transformer/kv_calibration.h"
#include "services/cli/calibrate/calibration_text.h"
#include "services/cli/command.h"
#include "services/text_model/text_model.h"

namespace sluice::cli {
namespace {

struct CalibrateFlags {
  std::string model;
  std::string out;
  std::string file;
  std::string tokens;
  uint32_t tokens_max = 512;
  uint32_t threads = 0;
};

absl::StatusOr<std::vector<request::TokenId>> TokensOf(const CalibrateFlags& flags) {
  if (!flags.tokens.empty()) return ParseTokenList(flags.tokens);
  std::string text(CalibrationText());
  if (!flags.file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(text, ReadTextFile(flags.file));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto text_model, services::LoadTextModel(flags.model));
  return text_model->EncodePrompt(text, false);
}

absl::Status Calibrate(const CalibrateFlags& flags) {
  if (flags.model == services::kToyModelPath) {
    return absl::InvalidArgumentError("the toy model attends nothing; there is no centre");
  }
  SLUICE_ASSIGN_OR_RETURN(std::vector<request::TokenId> tokens, TokensOf(flags));
  if (tokens.size() > flags.tokens_max) tokens.resize(flags.tokens_max);
  services::LocalModelOptions options;
  options.path = flags.model;
  options.kernels = "reference";
  options.kv_format = "f32";
  options.threads = flags.threads;
  SLUICE_ASSIGN_OR_RETURN(const services::LocalModel model, services::LoadLocalModel(options));
  SLUICE_ASSIGN_OR_RETURN(const model::KvCentre centre,
                          engine::CalibrateKvCentre(*model.runner, tokens));
  const std::string out = flags.out.empty() ? model::KvCentrePath(flags.model) : flags.out;
  SLUICE_RETURN_IF_ERROR(model::WriteKvCentre(out, centre));
  PrintLine(boost::json::serialize(
      boost::json::object{{"file", out},
                          {"tokens", tokens.size()},
                          {"layers", centre.layers},
                          {"kv_heads", centre.kv_heads},
                          {"head_dim", centre.head_dim},
                          {"digest", absl::BytesToHexString(centre.Digest())}}));
  return absl::OkStatus();
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Write the centre of a model's keys and values: smaller errors in 8-bit KV");
  AddModelOption(*command, &flags->model, "Model folder or .gguf file")->required();
  command->add_option("--out", flags->out,
                      "File to write; default: beside the model, where every command finds it");
  auto* file = command->add_option("--file", flags->file, "Text instead of the built-in one");
  command->add_option("--tokens", flags->tokens, "Ids, comma-separated, instead of a text")
      ->excludes(file);
  command->add_option("--max-tokens", flags->tokens_max, "Only so many tokens")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Compute threads; 0: every usable core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->footer(
      "Uses the reference kernels, so that every machine writes the same file. Workers that\n"
      "exchange pages need equal files, whatever their weight format.\n"
      "Examples:\n"
      "  sluice calibrate --model model.gguf\n"
      "  sluice generate --model model.gguf --kv gqa_fp8c --text \"Once upon\"");
  command->callback([flags, run] { *run = [flags] { return Calibrate(*flags); }; });
}

}  // namespace sluice::cli
