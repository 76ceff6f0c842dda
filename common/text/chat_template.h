// Chat messages to prompt text. Renderers are written here, not interpreted from model files: the
// text of a model's template only selects one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "text/segment.h"

namespace sluice::text {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant".
  std::string content;
  std::string reasoning;  // Of an assistant; most templates drop it.
};

struct ChatOptions {
  bool add_generation_prompt = true;
  // Llama-3.1 and later print it, for example "26 Jul 2024". Absent: the fixed default of the
  // template, so that equal requests give equal prompts on every day.
  std::optional<std::string> date = std::nullopt;
  // Qwen3: false asks for an answer without reasoning.
  bool enable_thinking = true;
};

// Immutable and thread-safe.
class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // Renders the prompt. INVALID_ARGUMENT for no messages, or a role that the template does not
  // know. The concatenation of the segments is the prompt that the published template gives.
  virtual absl::StatusOr<std::vector<Segment>> Render(absl::Span<const ChatMessage> messages,
                                                      const ChatOptions& options) const = 0;
  // "smollm2", "chatml", "qwen3", "llama-3", "llama-3.1", "plain".
  virtual absl::string_view name() const = 0;
  // Markers that end the assistant's turn; resolve them with Tokenizer::FindAdded and treat them as
  // eos.
  virtual absl::Span<const std::string> end_of_turn() const = 0;
};

// Recognises the published template by its text (`chat_template` of tokenizer_config.json,
// tokenizer.chat_template of a GGUF file). INVALID_ARGUMENT listing the supported ones if it is
// another.
absl::StatusOr<std::unique_ptr<const ChatTemplate>> RecognizeChatTemplate(
    absl::string_view template_text);

// The `chat_template` of a tokenizer_config.json: a string, or a list of named ones of which
// "default" is taken. Empty if there is none (newer models keep it in chat_template.jinja).
// INVALID_ARGUMENT for anything else.
absl::StatusOr<std::string> ChatTemplateText(absl::string_view tokenizer_config_json);

// "user: ...\nassistant:" without markers, for the toy model.
std::unique_ptr<const ChatTemplate> PlainChatTemplate();

// The prompt as one string.
std::string PromptText(absl::Span<const Segment> segments);

}  // namespace sluice::text
