#include "services/cli/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/cli/child_process.h"
#include "services/cli/model_name.h"

namespace sluice::cli {

CLI::Option* AddModelOption(CLI::App& command, std::string* model, const std::string& description,
                            const std::string& flag) {
  return command.add_option(flag, *model, description)->transform([](const std::string& name) {
    return FindModel(name, BinaryFolder());
  });
}

void AddModelOptions(CLI::App& command, services::LocalModelOptions* options) {
  AddModelOption(command, &options->path,
                 "Model folder, .gguf file, toy, or a name in deploy/models")
      ->required();
  command
      .add_option(
          "--kv", options->kv_format,
          "KV format: auto (FP8), f32, bf16, gqa_fp8, gqa_fp8c, gqa_int8c, mla_fp8, mla_fp8_656")
      ->capture_default_str();
  command.add_option("--kv-centre", options->kv_centre,
                     "File of sluice calibrate, or none; default: the one beside the model");
  command.add_option("--kernels", options->kernels, "auto, reference, avx2 or avx512")
      ->capture_default_str();
  command
      .add_option("--exactness", options->exactness,
                  "strict, or fast: prompts of models with latent attention in fewer operations, "
                  "with bits that depend on how they are cut")
      ->capture_default_str();
  command
      .add_option(
          "--activations", options->activations,
          "Rounding of activations beside quantised weights: int16, or int8 (faster, less exact)")
      ->capture_default_str();
  command.add_option("--threads", options->threads, "Compute threads; 0: every usable core")
      ->capture_default_str();
}

absl::StatusOr<std::vector<request::TokenId>> ParseTokenList(absl::string_view text) {
  std::vector<request::TokenId> tokens;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(part, &token) || token < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tokens: '", part, "' is no token id; write 1,2,3"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void PrintLine(absl::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

}  // namespace sluice::cli
