// sluice perplexity: how well a model predicts a text, and what a KV format or other weights cost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "services/cli/command.h"
#include "services/cli/local_session.h"
#include "services/cli/perplexity/distance.h"
#include "services/cli/teacher_forcing.h"
#include "services/text_model/text_model.h"
#include "text/detokenizer.h"

namespace sluice::cli {
namespace {

struct PerplexityFlags {
  services::LocalModelOptions model;
  std::string file;
  std::string against;
  std::string against_model;
  std::string against_kernels;
  std::string against_activations;

  bool compared() const {
    return !against.empty() || !against_model.empty() || !against_kernels.empty() ||
           !against_activations.empty();
  }
  uint32_t window = 1024;
  uint32_t tokens_max = 0;
  bool json = false;
};

absl::StatusOr<std::unique_ptr<LocalSession>> Open(services::LocalModelOptions options,
                                                   uint32_t window) {
  return LocalSession::Create(options, window, engine::EngineOptions());
}

// The other model, format or kernels to compare with; null when there is none.
absl::StatusOr<std::unique_ptr<LocalSession>> OpenReference(const PerplexityFlags& flags) {
  if (!flags.compared()) return nullptr;
  services::LocalModelOptions options = flags.model;
  if (!flags.against.empty()) options.kv_format = flags.against;
  if (!flags.against_kernels.empty()) options.kernels = flags.against_kernels;
  if (!flags.against_activations.empty()) options.activations = flags.against_activations;
  if (!flags.against_model.empty()) {
    options.path = flags.against_model;
    if (options.kv_centre != "none") options.kv_centre.clear();
  }
  return Open(options, flags.window);
}

// One window of text: its first token is given, the others are predicted.
absl::Status AddWindow(LocalSession& session, LocalSession* reference,
                       absl::Span<const request::TokenId> tokens, Distance* distance) {
  SLUICE_ASSIGN_OR_RETURN(TeacherForcing run, TeacherForcing::Create(session, tokens));
  std::unique_ptr<TeacherForcing> other;
  if (reference != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(TeacherForcing made, TeacherForcing::Create(*reference, tokens));
    other = std::make_unique<TeacherForcing>(std::move(made));
  }
  const size_t width = static_cast<size_t>(session.info().vocabulary);
  size_t position = 0;
  while (!run.done()) {
    SLUICE_ASSIGN_OR_RETURN(const absl::Span<const float> rows, run.Next());
    absl::Span<const float> other_rows;
    if (other != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(other_rows, other->Next());
    }
    for (size_t at = 0; at < rows.size(); at += width, ++position) {
      if (position + 1 < tokens.size()) {
        distance->AddPrediction(rows.subspan(at, width), tokens[position + 1]);
      }
      if (other != nullptr) {
        distance->AddComparison(other_rows.subspan(at, width), rows.subspan(at, width));
      }
    }
  }
  return absl::OkStatus();
}

// A few characters of the text before a position, and what both expect next.
struct WorstText {
  std::string before, reference_next, next;
};

WorstText TextOf(const text::Tokenizer& tokenizer, absl::Span<const request::TokenId> tokens,
                 const ComparedPosition& position) {
  constexpr size_t kTokensShown = 8;
  const size_t end = static_cast<size_t>(position.index) + 1;
  const size_t begin = end - std::min(end, kTokensShown);
  const auto text = [&](absl::Span<const request::TokenId> ids) {
    return text::Detokenize(tokenizer, ids, {.skip_special_tokens = false});
  };
  return {text(tokens.subspan(begin, end - begin)), text({&position.reference_top, 1}),
          text({&position.top, 1})};
}

void Print(const DistanceSummary& summary, const text::Tokenizer& tokenizer,
           absl::Span<const request::TokenId> tokens, bool compared, bool as_json) {
  if (as_json) {
    boost::json::object object = {
        {"tokens", summary.tokens}, {"nll", summary.nll}, {"perplexity", std::exp(summary.nll)}};
    if (compared) {
      object["kl_mean"] = summary.kl_mean;
      object["kl_p99"] = summary.kl_p99;
      object["kl_max"] = summary.kl_max;
      object["top1_agreement"] = summary.top1_agreement;
      boost::json::array worst;
      for (const ComparedPosition& position : summary.worst) {
        const WorstText text = TextOf(tokenizer, tokens, position);
        worst.push_back({{"position", position.index},
                         {"kl", position.kl},
                         {"before", text.before},
                         {"reference_next", text.reference_next},
                         {"next", text.next}});
      }
      object["worst"] = std::move(worst);
    }
    return PrintLine(boost::json::serialize(object));
  }
  PrintLine(absl::StrFormat("%d tokens, %.4f nats a token, perplexity %.3f", summary.tokens,
                            summary.nll, std::exp(summary.nll)));
  if (!compared) return;
  PrintLine(absl::StrFormat("KL mean %.3e, p99 %.3e, max %.3e, same likeliest token %.2f %%",
                            summary.kl_mean, summary.kl_p99, summary.kl_max,
                            100 * summary.top1_agreement));
  for (const ComparedPosition& position : summary.worst) {
    const WorstText text = TextOf(tokenizer, tokens, position);
    PrintLine(absl::StrFormat("  position %6d  KL %.3e  \"%s\" then \"%s\", reference \"%s\"",
                              position.index, position.kl, absl::CHexEscape(text.before),
                              absl::CHexEscape(text.next), absl::CHexEscape(text.reference_next)));
  }
}

absl::Status Perplexity(PerplexityFlags flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto text_model, services::LoadTextModel(flags.model.path));
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.file));
  SLUICE_ASSIGN_OR_RETURN(std::vector<request::TokenId> tokens,
                          text_model->EncodePrompt(text, false));
  if (flags.tokens_max > 0 && tokens.size() > flags.tokens_max) tokens.resize(flags.tokens_max);
  if (tokens.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.file, " has ", tokens.size(), " tokens; at least 2 are needed"));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto session, Open(flags.model, flags.window));
  SLUICE_ASSIGN_OR_RETURN(const auto reference, OpenReference(flags));
  if (reference != nullptr && reference->info().vocabulary != session->info().vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("vocabularies of ", session->info().vocabulary,
                                                   " and ", reference->info().vocabulary,
                                                   " cannot be compared"));
  }
  const size_t window =
      std::min<size_t>(flags.window, static_cast<size_t>(session->info().context_tokens));
  Distance distance;
  const absl::Span<const request::TokenId> all = tokens;
  for (size_t begin = 0; begin < all.size(); begin += window) {
    SLUICE_RETURN_IF_ERROR(
        AddWindow(*session, reference.get(), all.subspan(begin, window), &distance));
  }
  Print(distance.Summary(), *text_model->tokenizer, tokens, reference != nullptr, flags.json);
  return absl::OkStatus();
}

}  // namespace

void AddPerplexityCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command =
      app.add_subcommand("perplexity", "How well a model predicts a text, in windows of its own");
  AddModelOptions(*command, &flags->model);
  command->add_option("--file", flags->file, "Text file")->required();
  command->add_option("--against", flags->against, "KV format to compare with");
  AddModelOption(*command, &flags->against_model, "Model with the same vocabulary to compare with",
                 "--against-model");
  command->add_option("--against-kernels", flags->against_kernels,
                      "Kernels to compare with: auto, reference, avx2 or avx512");
  command->add_option("--against-activations", flags->against_activations,
                      "Rounding of activations to compare with: int8 or int16");
  command->add_option("--window", flags->window, "Tokens of a window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-tokens", flags->tokens_max, "Only so many tokens; 0: all")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "One JSON object");
  command->footer(
      "Examples:\n"
      "  sluice perplexity --model model.gguf --file text.txt --kv gqa_fp8 --against bf16 --json\n"
      "  sluice perplexity --model model-int4 --against-model model --file text.txt");
  command->callback([flags, run] { *run = [flags] { return Perplexity(*flags); }; });
}

}  // namespace sluice::cli
