#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "text/chat/families.h"
#include "text/chat/prompt_builder.h"
#include "text/chat/simple_template.h"
#include "text/chat/think_tags.h"
#include "text/python_json.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

constexpr absl::string_view kToolsHead =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr absl::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";

// A tool's answer that a client sent as a user's message is no question.
bool IsQuestion(const ChatMessage& message) {
  return message.role == "user" && !(absl::StartsWith(message.content, "<tool_response>") &&
                                     absl::EndsWith(message.content, "</tool_response>"));
}

size_t LastQuestion(absl::Span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (IsQuestion(messages[i])) return i;
  }
  return messages.size() - 1;
}

void System(const Conversation& conversation, PromptBuilder* prompt) {
  const ChatMessage& first = conversation.messages[0];
  const bool has_system = first.role == "system";
  if (conversation.tools.empty()) {
    if (has_system) {
      prompt->Trusted("<|im_start|>system\n").Untrusted(first.content).Trusted("<|im_end|>\n");
    }
    return;
  }
  prompt->Trusted("<|im_start|>system\n");
  if (has_system) prompt->Untrusted(first.content).Trusted("\n\n");
  prompt->Trusted(kToolsHead);
  for (const formats::JsonValue& tool : conversation.tools) {
    prompt->Trusted("\n").Untrusted(PythonJson(tool));
  }
  prompt->Trusted(kToolsTail);
}

void ToolCalls(const ChatMessage& message, bool has_content, PromptBuilder* prompt) {
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ChatToolCall& call = message.tool_calls[i];
    if (i > 0 || has_content) prompt->Trusted("\n");
    prompt->Trusted("<tool_call>\n{\"name\": \"").Untrusted(call.name);
    prompt->Trusted("\", \"arguments\": ");
    if (call.arguments == nullptr) {
      prompt->Trusted("{}");
    } else if (call.arguments->is_string()) {
      prompt->Untrusted(*call.arguments->AsString());
    } else {
      prompt->Untrusted(PythonJson(*call.arguments));
    }
    prompt->Trusted("}\n</tool_call>");
  }
}

void Assistant(const ChatMessage& message, bool behind_question, bool last, PromptBuilder* prompt) {
  auto [reasoning, content] = SplitReasoning(message);
  const bool has_content = !content.empty();
  prompt->Trusted("<|im_start|>assistant\n");
  if (behind_question && (last || !reasoning.empty())) {
    prompt->Trusted("<think>\n").Untrusted(PythonStrip(reasoning, "\n", Side::kBoth));
    prompt->Trusted("\n</think>\n\n");
    content = PythonStrip(content, "\n", Side::kLeft);
  }
  prompt->Untrusted(content);
  ToolCalls(message, has_content, prompt);
  prompt->Trusted("<|im_end|>\n");
}

// Results in a row share one user turn.
void ToolResult(absl::Span<const ChatMessage> messages, size_t i, PromptBuilder* prompt) {
  if (i == 0 || messages[i - 1].role != "tool") prompt->Trusted("<|im_start|>user");
  prompt->Trusted("\n<tool_response>\n").Untrusted(messages[i].content);
  prompt->Trusted("\n</tool_response>");
  if (i + 1 == messages.size() || messages[i + 1].role != "tool") prompt->Trusted("<|im_end|>\n");
}

class Qwen3 final : public SimpleTemplate {
 public:
  Qwen3() : SimpleTemplate("qwen3", {"<|im_end|>"}, OutputFormat::kHermes) {}

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    SLUICE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(request));
    const absl::Span<const ChatMessage> messages = conversation.messages;
    const size_t last_question = LastQuestion(messages);
    PromptBuilder prompt;
    System(conversation, &prompt);
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (message.role == "assistant") {
        Assistant(message, i > last_question, i + 1 == messages.size(), &prompt);
      } else if (message.role == "tool") {
        ToolResult(messages, i, &prompt);
      } else if (message.role == "user" || i > 0) {
        prompt.Trusted("<|im_start|>", message.role, "\n").Untrusted(message.content);
        prompt.Trusted("<|im_end|>\n");
      }
    }
    if (conversation.add_generation_prompt) {
      prompt.Trusted("<|im_start|>assistant\n");
      const formats::JsonValue* thinking = conversation.Argument("enable_thinking");
      if (thinking != nullptr && thinking->is_bool() && !*thinking->AsBool()) {
        prompt.Trusted("<think>\n\n</think>\n\n");
      }
    }
    return prompt.Finish();
  }
};

}  // namespace

std::unique_ptr<const ChatTemplate> Qwen3Template() { return std::make_unique<Qwen3>(); }

}  // namespace sluice::text
