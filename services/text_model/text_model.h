// The text side of a model: tokenizer, chat template and what generation_config says, loaded from
// the model's files without its weights. Joins common/model (files) and common/text (meaning),
// which do not know each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "request/sampling.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer.h"

namespace sluice::services {

// The path that selects the built-in model without files.
inline constexpr absl::string_view kToyModelPath = "toy";

// A conversation as the model reads it.
struct EncodedChat {
  std::vector<request::TokenId> ids;
  std::string text;  // the rendered prompt
  // The prompt leaves the assistant inside its reasoning.
  bool inside_thinking = false;
};

// Immutable and thread-safe.
struct TextModel {
  std::string name;  // last part of the path, without .gguf
  // Null when the model has no tokenizer: only token ids can be served then.
  std::unique_ptr<const text::Tokenizer> tokenizer;
  // Null when there is no chat template, or it is not one that is supported (`template_error` says
  // why).
  std::unique_ptr<const text::ChatTemplate> chat_template;
  absl::Status template_error;
  int32_t context_tokens = 0;
  int32_t vocabulary = 0;
  std::vector<request::TokenId> eos_tokens;

  // Encodes a raw prompt: bos where the model wants one.
  absl::StatusOr<std::vector<request::TokenId>> EncodePrompt(absl::string_view text,
                                                             bool trusted) const;
  // Renders and encodes a conversation. Errors: those of ChatTemplate::Render, FAILED_PRECONDITION
  // without a template.
  absl::StatusOr<EncodedChat> EncodeChat(const text::ChatRequest& request) const;
};

// `path`: a model folder, a .gguf file, or "toy". A folder that holds only tokenizer files will do.
absl::StatusOr<std::unique_ptr<const TextModel>> LoadTextModel(absl::string_view path);

}  // namespace sluice::services
