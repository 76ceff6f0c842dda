#include "services/text_model/text_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/toy_model.h"
#include "model/model_files.h"
#include "model/tokenizer_inputs.h"
#include "text/chat/families.h"
#include "text/chat/load_template.h"

namespace sluice::services {
namespace {

std::string NameOf(absl::string_view path) {
  while (absl::ConsumeSuffix(&path, "/")) {
  }
  const size_t slash = path.rfind('/');
  absl::string_view name = slash == absl::string_view::npos ? path : path.substr(slash + 1);
  absl::ConsumeSuffix(&name, ".gguf");
  return std::string(name);
}

absl::StatusOr<text::TokenizerSpec> SpecOf(const model::TokenizerInputs& inputs) {
  switch (inputs.kind) {
    case model::TokenizerInputs::Kind::kGguf: {
      text::GgufVocabulary vocabulary;
      vocabulary.model = inputs.gguf.model;
      vocabulary.pre = inputs.gguf.pre;
      vocabulary.tokens = inputs.gguf.tokens;
      vocabulary.token_types = inputs.gguf.token_types;
      vocabulary.merges = inputs.gguf.merges;
      vocabulary.bos = inputs.gguf.bos;
      vocabulary.pad = inputs.gguf.pad;
      vocabulary.unknown = inputs.gguf.unknown;
      vocabulary.eos = inputs.gguf.eos;
      vocabulary.add_bos = inputs.gguf.add_bos;
      return text::SpecFromGguf(vocabulary);
    }
    case model::TokenizerInputs::Kind::kTokenizerJson:
      return text::SpecFromTokenizerJson(inputs.tokenizer_json, inputs.tokenizer_config_json);
    case model::TokenizerInputs::Kind::kTiktoken:
      return text::SpecFromTiktoken(inputs.tiktoken_model, inputs.tokenizer_config_json);
    case model::TokenizerInputs::Kind::kNone:
      break;
  }
  return absl::NotFoundError("the model's files hold no tokenizer");
}

// The text of a token that a template may print by name; "" without one.
std::string TokenText(const text::Tokenizer& tokenizer, std::optional<text::TokenId> id) {
  return id.has_value() ? std::string(tokenizer.TokenBytes(*id)) : "";
}

void AddTemplate(const std::string& chat_template, TextModel* result) {
  if (chat_template.empty()) {
    result->template_error = absl::NotFoundError(
        "the model's files hold no chat template (chat_template.jinja, or chat_template in "
        "tokenizer_config.json)");
    return;
  }
  const text::Tokenizer& tokenizer = *result->tokenizer;
  text::TemplateSource source;
  source.text = chat_template;
  source.bos_token = TokenText(tokenizer, tokenizer.bos_id());
  source.pad_token = TokenText(tokenizer, tokenizer.pad_id());
  if (!tokenizer.eos_ids().empty())
    source.eos_token = TokenText(tokenizer, tokenizer.eos_ids().front());
  auto loaded = text::LoadChatTemplate(source);
  if (loaded.ok()) {
    result->chat_template = *std::move(loaded);
  } else {
    result->template_error = loaded.status();
  }
}

absl::Status AddTokenizer(const model::TokenizerInputs& inputs, TextModel* result) {
  SLUICE_ASSIGN_OR_RETURN(text::TokenizerSpec spec, SpecOf(inputs));
  SLUICE_ASSIGN_OR_RETURN(result->tokenizer, text::Tokenizer::Create(std::move(spec)));
  AddTemplate(inputs.chat_template, result);
  result->eos_tokens = result->tokenizer->eos_ids();
  if (result->chat_template != nullptr) {
    for (const std::string& marker : result->chat_template->end_of_turn()) {
      if (auto id = result->tokenizer->FindAdded(marker)) result->eos_tokens.push_back(*id);
    }
  }
  return absl::OkStatus();
}

// A folder whose tokenizer came from elsewhere would answer with the wrong words.
absl::Status CheckTokenizer(const text::Tokenizer& tokenizer, const model::ModelConfig& config) {
  if (tokenizer.vocab_size() > config.vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.name, ": the tokenizer has ids up to ", tokenizer.vocab_size() - 1,
                     ", the model's vocabulary (vocab_size) ends at ", config.vocabulary - 1,
                     "; it is the tokenizer of another model"));
  }
  const std::vector<int32_t>& ends = config.eos_tokens;
  const auto is_marker = [&](int32_t id) {
    return tokenizer.FindAdded(tokenizer.TokenBytes(id)).has_value();
  };
  if (ends.empty() || std::any_of(ends.begin(), ends.end(), is_marker)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      config.name, ": the end of text (eos_token_id) is ", ends.front(), ", expected a marker; ",
      ends.front() < tokenizer.vocab_size() ? "the tokenizer has ordinary text there"
                                            : "the tokenizer has no such id",
      "; it is the tokenizer of another model"));
}

absl::StatusOr<std::unique_ptr<const TextModel>> ToyTextModel() {
  auto result = std::make_unique<TextModel>();
  result->name = std::string(kToyModelPath);
  SLUICE_ASSIGN_OR_RETURN(result->tokenizer, text::Tokenizer::Create(text::ByteTokenizerSpec()));
  result->chat_template = text::PlainChatTemplate();
  result->context_tokens = engine::ToyModelOptions().context_tokens;
  result->vocabulary = engine::kToyVocabulary;
  result->eos_tokens = {engine::kToyEos};
  return result;
}

}  // namespace

absl::StatusOr<std::vector<request::TokenId>> TextModel::EncodePrompt(absl::string_view text,
                                                                      bool trusted) const {
  if (tokenizer == nullptr)
    return absl::FailedPreconditionError(
        absl::StrCat("model ", name, " has no tokenizer; send token ids"));
  SLUICE_ASSIGN_OR_RETURN(std::vector<request::TokenId> ids, tokenizer->Encode(text, trusted));
  if (tokenizer->add_bos() && tokenizer->bos_id() &&
      (ids.empty() || ids.front() != *tokenizer->bos_id())) {
    ids.insert(ids.begin(), *tokenizer->bos_id());
  }
  return ids;
}

absl::StatusOr<EncodedChat> TextModel::EncodeChat(const text::ChatRequest& request) const {
  if (tokenizer == nullptr)
    return absl::FailedPreconditionError(
        absl::StrCat("model ", name, " has no tokenizer; send token ids"));
  if (chat_template == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("model ", name, " takes no messages: ", template_error.message()));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<text::Segment> segments,
                          chat_template->Render(request));
  EncodedChat chat;
  SLUICE_ASSIGN_OR_RETURN(chat.ids, tokenizer->EncodeSegments(segments));
  chat.text = text::PromptText(segments);
  chat.inside_thinking = text::EndsInsideThinking(segments);
  return chat;
}

absl::StatusOr<std::unique_ptr<const TextModel>> LoadTextModel(absl::string_view path) {
  if (path == kToyModelPath) return ToyTextModel();
  auto result = std::make_unique<TextModel>();
  result->name = NameOf(path);
  SLUICE_ASSIGN_OR_RETURN(const model::TokenizerInputs inputs, model::ReadTokenizerInputs(path));
  if (inputs.kind != model::TokenizerInputs::Kind::kNone)
    SLUICE_RETURN_IF_ERROR(AddTokenizer(inputs, result.get()));
  const auto config = model::ReadModelConfig(path);
  if (config.ok()) {
    if (result->tokenizer != nullptr)
      SLUICE_RETURN_IF_ERROR(CheckTokenizer(*result->tokenizer, *config));
    result->context_tokens = config->context_tokens;
    result->vocabulary = config->vocabulary;
    result->eos_tokens.insert(result->eos_tokens.end(), config->eos_tokens.begin(),
                              config->eos_tokens.end());
  } else if (result->tokenizer == nullptr) {
    return config.status();
  } else {
    result->vocabulary = result->tokenizer->vocab_size();
  }
  std::sort(result->eos_tokens.begin(), result->eos_tokens.end());
  result->eos_tokens.erase(std::unique(result->eos_tokens.begin(), result->eos_tokens.end()),
                           result->eos_tokens.end());
  return result;
}

}  // namespace sluice::services
