// sluice logits: teacher-forced logits of every position, for comparison with a reference.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/safetensors.h"
#include "services/cli/command.h"
#include "services/cli/local_session.h"
#include "services/cli/teacher_forcing.h"

namespace sluice::cli {
namespace {

struct LogitsFlags {
  services::LocalModelOptions model;
  std::string tokens;
  std::string out;
  std::string index_ties = "torch";
};

absl::Status Logits(const LogitsFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<request::TokenId> tokens, ParseTokenList(flags.tokens));
  if (tokens.empty()) return absl::InvalidArgumentError("--tokens is empty");
  services::LocalModelOptions options = flags.model;
  if (flags.index_ties == "torch") options.torch_length = static_cast<int64_t>(tokens.size());
  SLUICE_ASSIGN_OR_RETURN(auto session,
                          LocalSession::Create(options, tokens.size(), engine::EngineOptions()));
  SLUICE_ASSIGN_OR_RETURN(TeacherForcing run, TeacherForcing::Create(*session, tokens));
  const size_t width = static_cast<size_t>(session->info().vocabulary);
  std::vector<float> logits;
  logits.reserve(tokens.size() * width);
  while (!run.done()) {
    SLUICE_ASSIGN_OR_RETURN(const absl::Span<const float> rows, run.Next());
    logits.insert(logits.end(), rows.begin(), rows.end());
  }
  formats::SafetensorsF32 tensor;
  tensor.name = "logits";
  tensor.shape = {tokens.size(), width};
  tensor.data = logits;
  SLUICE_RETURN_IF_ERROR(formats::WriteSafetensors(flags.out, {&tensor, 1}));
  PrintLine(absl::StrCat("{\"rows\":", tokens.size(), ",\"vocabulary\":", width, "}"));
  return absl::OkStatus();
}

}  // namespace

void AddLogitsCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command =
      app.add_subcommand("logits", "Write the logits of every position as safetensors");
  AddModelOptions(*command, &flags->model);
  command->add_option("--tokens", flags->tokens, "Ids, comma-separated")->required();
  command->add_option("--out", flags->out, "File to write: \"logits\" float32 [T, V]")->required();
  command
      ->add_option(
          "--index-ties", flags->index_ties,
          "Positions of equal index score (GLM-5): as torch orders them in a prompt of this "
          "length, or the earlier first, as everything else here does")
      ->check(CLI::IsMember({"torch", "earlier"}))
      ->capture_default_str();
  command->footer(
      "Example:\n"
      "  sluice logits --model model.gguf --tokens 1,2,3 --kv f32 --kernels reference --out "
      "l.safetensors");
  command->callback([flags, run] { *run = [flags] { return Logits(*flags); }; });
}

}  // namespace sluice::cli
