// Conversations to prompts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "formats/json.h"
#include "text/output/output_format.h"
#include "text/segment.h"

namespace sluice::text {

// What a client asks to be rendered, in the words of the OpenAI API. Nothing in it is trusted.
struct ChatRequest {
  formats::JsonValue messages;                // a list of objects
  formats::JsonValue tools;                   // null or a list of objects
  formats::JsonValue::Object arguments = {};  // of the template: chat_template_kwargs
  bool add_generation_prompt = true;
  // For templates that print today's date. The default keeps equal requests equal on every day.
  absl::CivilDay today = absl::CivilDay(2024, 7, 26);
};

// Immutable and thread-safe.
class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // The prompt as trusted and untrusted segments: whatever came with the request is untrusted, so a
  // marker in it stays text. INVALID_ARGUMENT, naming the place in the request, for what the
  // template cannot render.
  virtual absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const = 0;
  virtual absl::string_view name() const = 0;
  // Markers that end the assistant's turn; resolve them with Tokenizer::FindAdded and treat them as
  // eos.
  virtual absl::Span<const std::string> end_of_turn() const = 0;
  // How the model writes reasoning and tool calls.
  virtual OutputFormat output_format() const = 0;
};

// The prompt as one string.
std::string PromptText(absl::Span<const Segment> segments);
// Does the prompt leave the assistant inside its reasoning: does it end with an open <think>?
bool EndsInsideThinking(absl::Span<const Segment> segments);

}  // namespace sluice::text
