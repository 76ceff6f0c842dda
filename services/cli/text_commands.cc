// sluice tokenize, detokenize, render: need only the tokenizer and template files of a model.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "services/cli/chat_file.h"
#include "services/cli/command.h"
#include "services/text_model/text_model.h"
#include "text/detokenizer.h"

namespace sluice::cli {
namespace {

struct TextFlags {
  std::string model;
  std::string text;
  std::string file;
  std::string tokens;
  std::string chat;
  bool special = false;
};

absl::StatusOr<std::unique_ptr<const services::TextModel>> LoadTokenizer(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(auto model, services::LoadTextModel(path));
  if (model->tokenizer == nullptr)
    return absl::NotFoundError(absl::StrCat(path, " holds no tokenizer"));
  return model;
}

absl::Status Tokenize(const TextFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto model, LoadTokenizer(flags.model));
  std::string text = flags.text;
  if (!flags.file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(text, ReadTextFile(flags.file));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto ids, model->tokenizer->Encode(text, flags.special));
  PrintLine(absl::StrCat("[", absl::StrJoin(ids, ","), "]"));
  return absl::OkStatus();
}

absl::Status Detokenize(const TextFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto model, LoadTokenizer(flags.model));
  SLUICE_ASSIGN_OR_RETURN(const auto ids, ParseTokenList(flags.tokens));
  PrintLine(text::Detokenize(*model->tokenizer, ids, {.skip_special_tokens = false}));
  return absl::OkStatus();
}

absl::Status Render(const TextFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto model, services::LoadTextModel(flags.model));
  if (model->chat_template == nullptr) return model->template_error;
  SLUICE_ASSIGN_OR_RETURN(const text::ChatRequest chat, ReadChatFile(flags.chat));
  SLUICE_ASSIGN_OR_RETURN(const auto segments, model->chat_template->Render(chat));
  // The prompt exactly, without a newline of ours.
  const std::string prompt = text::PromptText(segments);
  std::fwrite(prompt.data(), 1, prompt.size(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddTextCommands(CLI::App& app, Command* run) {
  auto flags = std::make_shared<TextFlags>();
  CLI::App* tokenize = app.add_subcommand("tokenize", "Text to token ids: a JSON array");
  AddModelOption(*tokenize, &flags->model,
                 "Model folder, .gguf file, toy, or a name in deploy/models")
      ->required();
  CLI::Option_group* input = tokenize->add_option_group("input");
  input->add_option("--text", flags->text, "The text");
  input->add_option("--file", flags->file, "A file with the text");
  input->require_option(1);
  tokenize->add_flag("--special", flags->special, "Parse markers as special tokens");
  tokenize->footer(
      "Examples:\n"
      "  sluice tokenize --model model.gguf --text \"Hello, world\"\n"
      "  sluice tokenize --model model.gguf --special --file prompt.txt");
  tokenize->callback([flags, run] { *run = [flags] { return Tokenize(*flags); }; });

  CLI::App* detokenize = app.add_subcommand("detokenize", "Token ids to text");
  AddModelOption(*detokenize, &flags->model,
                 "Model folder, .gguf file, toy, or a name in deploy/models")
      ->required();
  detokenize->add_option("--tokens", flags->tokens, "Ids, comma-separated")->required();
  detokenize->footer("Example:\n  sluice detokenize --model model.gguf --tokens 19556,28,905");
  detokenize->callback([flags, run] { *run = [flags] { return Detokenize(*flags); }; });

  CLI::App* render = app.add_subcommand(
      "render", "A conversation to the prompt text of the model's chat template");
  AddModelOption(*render, &flags->model,
                 "Model folder, .gguf file, toy, or a name in deploy/models")
      ->required();
  render->add_option("--chat", flags->chat, "JSON file: messages, tools, chat_template_kwargs")
      ->required();
  render->footer(
      "Example:\n"
      "  echo '{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}' > chat.json\n"
      "  sluice render --model model.gguf --chat chat.json");
  render->callback([flags, run] { *run = [flags] { return Render(*flags); }; });
}

}  // namespace sluice::cli
