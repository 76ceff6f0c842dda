// DeepSeek-V3.1. Its template prints no list of tools: clients describe them in the system message.
#include <utility>

#include "base/status_macros.h"
#include "text/chat/families.h"
#include "text/chat/prompt_builder.h"
#include "text/chat/simple_template.h"
#include "text/python_json.h"

namespace sluice::text {
namespace {

constexpr absl::string_view kEnd = "<｜end▁of▁sentence｜>";

void Systems(const Conversation& conversation, PromptBuilder* prompt) {
  bool first = true;
  for (const ChatMessage& message : conversation.messages) {
    if (message.role != "system") continue;
    if (!std::exchange(first, false)) prompt->Trusted("\n\n");
    prompt->Untrusted(message.content);
  }
}

void ToolCalls(const ChatMessage& message, PromptBuilder* prompt) {
  prompt->Untrusted(message.content).Trusted("<｜tool▁calls▁begin｜>");
  for (const ChatToolCall& call : message.tool_calls) {
    prompt->Trusted("<｜tool▁call▁begin｜>").Untrusted(call.name).Trusted("<｜tool▁sep｜>");
    prompt->Untrusted(call.arguments == nullptr ? "{}" : PythonJson(*call.arguments));
    prompt->Trusted("<｜tool▁call▁end｜>");
  }
  prompt->Trusted("<｜tool▁calls▁end｜>", kEnd);
}

// What stands behind the reasoning that a client left in the text.
absl::string_view Answer(absl::string_view content) {
  constexpr absl::string_view kThinkEnd = "</think>";
  const size_t end = content.find(kThinkEnd);
  return end == absl::string_view::npos ? content : content.substr(end + kThinkEnd.size());
}

class DeepSeek final : public SimpleTemplate {
 public:
  explicit DeepSeek(std::string bos)
      : SimpleTemplate("deepseek-v3.1", {std::string(kEnd)}, OutputFormat::kDeepSeek),
        bos_(std::move(bos)) {}

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    SLUICE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(request));
    const bool thinking = conversation.Argument("thinking") != nullptr
                              ? conversation.IsOn("thinking")
                              : conversation.IsOn("enable_thinking");
    PromptBuilder prompt;
    prompt.Trusted(bos_);
    Systems(conversation, &prompt);
    bool behind_user = false, behind_result = false;
    for (const ChatMessage& message : conversation.messages) {
      if (message.role == "system") continue;
      if (message.role == "user") {
        prompt.Trusted("<｜User｜>").Untrusted(message.content);
      } else if (message.role == "tool") {
        prompt.Trusted("<｜tool▁output▁begin｜>").Untrusted(message.content);
        prompt.Trusted("<｜tool▁output▁end｜>");
      } else {
        if (behind_user) prompt.Trusted("<｜Assistant｜><think></think>");
        if (!message.tool_calls.empty()) {
          ToolCalls(message, &prompt);
        } else {
          prompt.Untrusted(behind_result ? message.content : Answer(message.content));
          prompt.Trusted(kEnd);
        }
      }
      behind_user = message.role == "user";
      behind_result = message.role == "tool";
    }
    if (conversation.add_generation_prompt && behind_user) {
      prompt.Trusted("<｜Assistant｜>", thinking ? "<think>" : "<think></think>");
    }
    return prompt.Finish();
  }

 private:
  const std::string bos_;
};

}  // namespace

std::unique_ptr<const ChatTemplate> DeepSeekTemplate(std::string bos) {
  return std::make_unique<DeepSeek>(std::move(bos));
}

}  // namespace sluice::text
