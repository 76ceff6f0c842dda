// ChatML (SmolLM2, Qwen2 and many others), and the markerless form of the toy model.
#include <utility>

#include "base/status_macros.h"
#include "text/chat/families.h"
#include "text/chat/prompt_builder.h"
#include "text/chat/simple_template.h"

namespace sluice::text {
namespace {

// These templates have no place for tools: a call or a list of functions would be lost.
absl::Status RefuseTools(const Conversation& conversation) {
  for (const ChatMessage& message : conversation.messages) {
    if (!message.tool_calls.empty() || message.role == "tool") {
      return absl::InvalidArgumentError("the chat template of this model knows no tool calls");
    }
  }
  if (conversation.tools.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("the chat template of this model knows no tools");
}

class ChatMl final : public SimpleTemplate {
 public:
  ChatMl(absl::string_view name, std::string default_system)
      : SimpleTemplate(name, {"<|im_end|>"}, OutputFormat::kPlain),
        default_system_(std::move(default_system)) {}

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    SLUICE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(request));
    SLUICE_RETURN_IF_ERROR(RefuseTools(conversation));
    PromptBuilder prompt;
    if (!default_system_.empty() && conversation.messages[0].role != "system") {
      prompt.Trusted("<|im_start|>system\n", default_system_, "<|im_end|>\n");
    }
    for (const ChatMessage& message : conversation.messages) {
      prompt.Trusted("<|im_start|>", message.role, "\n");
      prompt.Untrusted(message.content).Trusted("<|im_end|>\n");
    }
    if (conversation.add_generation_prompt) prompt.Trusted("<|im_start|>assistant\n");
    return prompt.Finish();
  }

 private:
  const std::string default_system_;
};

class Plain final : public SimpleTemplate {
 public:
  Plain() : SimpleTemplate("plain", {}, OutputFormat::kPlain) {}

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    SLUICE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(request));
    SLUICE_RETURN_IF_ERROR(RefuseTools(conversation));
    PromptBuilder prompt;
    for (const ChatMessage& message : conversation.messages) {
      prompt.Trusted(message.role, ": ").Untrusted(message.content).Trusted("\n");
    }
    if (conversation.add_generation_prompt) prompt.Trusted("assistant:");
    return prompt.Finish();
  }
};

}  // namespace

std::unique_ptr<const ChatTemplate> ChatMlTemplate(absl::string_view name,
                                                   std::string default_system) {
  return std::make_unique<ChatMl>(name, std::move(default_system));
}

std::unique_ptr<const ChatTemplate> PlainChatTemplate() { return std::make_unique<Plain>(); }

}  // namespace sluice::text
