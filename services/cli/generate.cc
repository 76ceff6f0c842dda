// sluice generate: one prompt, one process, no cluster.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "services/cli/chat_file.h"
#include "services/cli/command.h"
#include "services/cli/local_session.h"
#include "services/text_model/text_model.h"
#include "text/detokenizer.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

struct GenerateFlags {
  services::LocalModelOptions model;
  std::string text;
  std::string tokens;
  std::string chat;
  request::SamplingParams sampling;
  bool json = false;
};

absl::StatusOr<std::vector<request::TokenId>> PromptOf(const GenerateFlags& flags,
                                                       const services::TextModel& text_model) {
  if (!flags.tokens.empty()) return ParseTokenList(flags.tokens);
  if (!flags.chat.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const text::ChatRequest chat, ReadChatFile(flags.chat));
    SLUICE_ASSIGN_OR_RETURN(services::EncodedChat encoded, text_model.EncodeChat(chat));
    return std::move(encoded.ids);
  }
  return text_model.EncodePrompt(flags.text, false);
}

json::object ToJson(const LocalResult& result, size_t prompt_tokens,
                    const services::TextModel& text_model, bool with_hashes) {
  json::array ids, hashes;
  std::vector<request::TokenId> tokens;
  for (const request::SampledToken& token : result.tokens) {
    ids.push_back(token.token);
    tokens.push_back(token.token);
    // As text: a JSON number need not keep 64 bits.
    if (with_hashes)
      hashes.push_back(json::string(absl::StrCat(absl::Hex(token.logits_hash, absl::kZeroPad16))));
  }
  // The token that ended the sequence is not part of its text.
  if (result.finish == request::FinishReason::kStop && !tokens.empty()) tokens.pop_back();
  const absl::string_view finish = request::FinishReasonName(result.finish);
  json::object usage = {{"prompt_tokens", prompt_tokens},
                        {"completion_tokens", result.tokens.size()},
                        {"cached_tokens", result.stats.cached_tokens}};
  json::value text;
  if (text_model.tokenizer != nullptr) text = text::Detokenize(*text_model.tokenizer, tokens);
  json::object object = {{"prompt_tokens", prompt_tokens},
                         {"token_ids", std::move(ids)},
                         {"text", std::move(text)},
                         {"finish_reason", std::string(finish)},
                         {"usage", std::move(usage)}};
  if (with_hashes) object["logits_hashes"] = std::move(hashes);
  return object;
}

absl::Status Generate(const GenerateFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto text_model, services::LoadTextModel(flags.model.path));
  SLUICE_ASSIGN_OR_RETURN(std::vector<request::TokenId> prompt, PromptOf(flags, *text_model));
  const size_t prompt_tokens = prompt.size();
  engine::EngineOptions options;
  options.batch_max = 1;
  SLUICE_ASSIGN_OR_RETURN(
      auto session,
      LocalSession::Create(flags.model, prompt_tokens + flags.sampling.max_tokens, options));
  if (prompt_tokens + flags.sampling.max_tokens >
      static_cast<size_t>(session->info().context_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt of ", prompt_tokens, " tokens and --max-tokens ", flags.sampling.max_tokens,
        " exceed the context of ", session->info().context_tokens));
  }
  SLUICE_RETURN_IF_ERROR(request::ValidateSampling(flags.sampling, session->info().vocabulary));

  LocalSession::TokenCallback print;
  std::optional<text::StreamDetokenizer> detokenizer;
  if (!flags.json && text_model->tokenizer != nullptr) {
    detokenizer.emplace(*text_model->tokenizer);
    print = [&detokenizer](const request::SampledToken& token, request::FinishReason finish) {
      std::string text;
      if (finish != request::FinishReason::kStop) detokenizer->Append(token.token, &text);
      if (finish != request::FinishReason::kNone) detokenizer->Flush(&text);
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
  }
  SLUICE_ASSIGN_OR_RETURN(const SequenceId id,
                          session->Submit(std::move(prompt), flags.sampling, print));
  while (session->Step()) {
  }
  const LocalResult& result = session->result(id);
  SLUICE_RETURN_IF_ERROR(result.status);
  PrintLine(flags.json ? json::serialize(
                             ToJson(result, prompt_tokens, *text_model, flags.sampling.logits_hash))
                       : "");
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command =
      app.add_subcommand("generate", "Continue one prompt in this process, without a cluster");
  AddModelOptions(*command, &flags->model);
  CLI::Option_group* input = command->add_option_group("input");
  input->add_option("--text", flags->text, "Prompt text; markers in it stay text");
  input->add_option("--tokens", flags->tokens, "Prompt ids, comma-separated");
  input->add_option("--chat", flags->chat, "JSON file with messages");
  input->require_option(1);
  flags->sampling.max_tokens = 128;
  command->add_option("--max-tokens", flags->sampling.max_tokens, "Most output tokens")
      ->capture_default_str();
  flags->sampling.temperature = 0;
  command->add_option("--temperature", flags->sampling.temperature, "0 is greedy")
      ->capture_default_str();
  command->add_option("--top-p", flags->sampling.top_p, "Nucleus of this probability")
      ->capture_default_str();
  command->add_option("--top-k", flags->sampling.top_k, "Only the k likeliest tokens; 0: all")
      ->capture_default_str();
  command
      ->add_option("--min-p", flags->sampling.min_p,
                   "Drop tokens below this share of the likeliest")
      ->capture_default_str();
  command->add_option("--seed", flags->sampling.seed, "Noise depends on it and the position only")
      ->capture_default_str();
  command->add_flag("--ignore-eos", flags->sampling.ignore_eos, "Go on after end tokens");
  CLI::Option* print_json =
      command->add_flag("--json", flags->json, "Print one JSON object at the end");
  command
      ->add_flag("--logits-hashes", flags->sampling.logits_hash,
                 "With --json: a hash of the logits behind every token")
      ->needs(print_json);
  command->footer(
      "Examples:\n"
      "  sluice generate --model model.gguf --text \"Once upon a time\" --max-tokens 64\n"
      "  sluice generate --model model.gguf --chat chat.json --temperature 0.8 --seed 7 --json");
  command->callback([flags, run] { *run = [flags] { return Generate(*flags); }; });
}

}  // namespace sluice::cli
