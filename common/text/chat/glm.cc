// GLM-4.5 to GLM-5.2: role markers without end markers, calls as <arg_key> and <arg_value>.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/chat/families.h"
#include "text/chat/prompt_builder.h"
#include "text/chat/simple_template.h"
#include "text/chat/think_tags.h"
#include "text/python_json.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

using formats::JsonValue;
using Generation = GlmOptions::Generation;

constexpr absl::string_view kToolsHead =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user "
    "query.\n\nYou are provided with function signatures within <tools></tools> XML "
    "tags:\n<tools>\n";
constexpr absl::string_view kToolsTail =
    "</tools>\n\nFor each function call, output the function name and arguments within the "
    "following XML format:\n";

class Glm final : public SimpleTemplate {
 public:
  explicit Glm(Generation generation)
      : SimpleTemplate(generation == Generation::k45   ? "glm-4.6"
                       : generation == Generation::k47 ? "glm-4.7"
                                                       : "glm-5.2",
                       {"<|user|>", "<|observation|>", "<|endoftext|>"}, OutputFormat::kGlm),
        generation_(generation),
        line_(generation == Generation::k45 ? "\n" : "") {}

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    SLUICE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(request));
    const absl::Span<const ChatMessage> messages = conversation.messages;
    const bool off = conversation.IsOff("enable_thinking");
    size_t behind_question = 0;  // the first message behind the last user message
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == "user") behind_question = i + 1;
    }
    PromptBuilder prompt;
    prompt.Trusted("[gMASK]<sop>");
    if (generation_ == Generation::k52 && !off) Effort(conversation, &prompt);
    if (!conversation.tools.empty()) Tools(conversation.tools, &prompt);
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (message.role == "assistant") {
        const bool keep = i >= behind_question ||
                          (generation_ != Generation::k45 && conversation.IsOff("clear_thinking"));
        SLUICE_RETURN_IF_ERROR(Assistant(message, keep, &prompt));
      } else if (message.role == "tool") {
        if (i == 0 || messages[i - 1].role != "tool") prompt.Trusted("<|observation|>");
        prompt.Trusted(line_, "<tool_response>", line_).Untrusted(message.content);
        prompt.Trusted(line_, "</tool_response>");
      } else {
        prompt.Trusted("<|", message.role, "|>", line_).Untrusted(message.content);
        if (message.role == "user" && generation_ == Generation::k45 && off &&
            !absl::EndsWith(message.content, "/nothink")) {
          prompt.Trusted("/nothink");
        }
      }
    }
    if (conversation.add_generation_prompt) prompt.Trusted("<|assistant|>", Opening(off));
    return prompt.Finish();
  }

 private:
  // What stands behind <|assistant|> for an answer to come.
  absl::string_view Opening(bool off) const {
    switch (generation_) {
      case Generation::k45:
        return off ? "\n<think></think>" : "";
      case Generation::k47:
        return off ? "</think>" : "<think>";
      case Generation::k52:
        return off ? "<think></think>" : "<think>";
    }
    return "";
  }

  static void Effort(const Conversation& conversation, PromptBuilder* prompt) {
    const JsonValue* effort = conversation.Argument("reasoning_effort");
    const bool high = effort != nullptr && effort->is_string() && *effort->AsString() == "high";
    prompt->Trusted("<|system|>Reasoning Effort: ", high ? "High" : "Max");
  }

  void Tools(absl::Span<const JsonValue> tools, PromptBuilder* prompt) const {
    prompt->Trusted(kToolsHead);
    for (const JsonValue& tool : tools) prompt->Untrusted(PythonJson(tool)).Trusted("\n");
    prompt->Trusted(kToolsTail, "<tool_call>{function-name}", line_);
    for (const char* number : {"1", "2"}) {
      prompt->Trusted("<arg_key>{arg-key-", number, "}</arg_key>", line_, "<arg_value>{arg-value-",
                      number, "}</arg_value>", line_);
    }
    prompt->Trusted("...", line_, "</tool_call>");
  }

  absl::Status Assistant(const ChatMessage& message, bool keep_reasoning,
                         PromptBuilder* prompt) const {
    const auto [reasoning, content] = SplitReasoning(message);
    prompt->Trusted("<|assistant|>", line_);
    if (keep_reasoning && !reasoning.empty()) {
      prompt->Trusted("<think>").Untrusted(PythonStrip(reasoning)).Trusted("</think>");
    } else {
      prompt->Trusted(generation_ == Generation::k47 ? "</think>" : "<think></think>");
    }
    if (const absl::string_view text = PythonStrip(content); !text.empty()) {
      prompt->Trusted(line_).Untrusted(text);
    }
    for (const ChatToolCall& call : message.tool_calls) {
      SLUICE_RETURN_IF_ERROR(ToolCall(call, prompt));
    }
    return absl::OkStatus();
  }

  absl::Status ToolCall(const ChatToolCall& call, PromptBuilder* prompt) const {
    JsonValue parsed;
    SLUICE_ASSIGN_OR_RETURN(const JsonValue* arguments, ArgumentsObject(call, &parsed));
    prompt->Trusted(line_, "<tool_call>").Untrusted(call.name).Trusted(line_);
    for (const auto& [key, value] : arguments->members()) {
      prompt->Trusted("<arg_key>").Untrusted(key).Trusted("</arg_key>", line_, "<arg_value>");
      prompt->Untrusted(value.is_string() ? std::string(*value.AsString()) : PythonJson(value));
      prompt->Trusted("</arg_value>", line_);
    }
    prompt->Trusted("</tool_call>");
    return absl::OkStatus();
  }

  const Generation generation_;
  const absl::string_view line_;  // a line break between the parts, or nothing
};

}  // namespace

std::unique_ptr<const ChatTemplate> GlmTemplate(const GlmOptions& options) {
  return std::make_unique<Glm>(options.generation);
}

}  // namespace sluice::text
