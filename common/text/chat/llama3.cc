// Llama-3, and Llama-3.1 and later, which always have a system message with dates.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/chat/families.h"
#include "text/chat/prompt_builder.h"
#include "text/chat/simple_template.h"
#include "text/python_json.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

constexpr absl::string_view kDefaultDate = "26 Jul 2024";
constexpr absl::string_view kAnswerFormat =
    "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name "
    "and "
    "its value}.Do not use variables.\n\n";
constexpr absl::string_view kToolsInUserMessage =
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\n";
constexpr absl::string_view kToolsInSystemMessage =
    "You have access to the following functions. To call a function, please respond with JSON for "
    "a "
    "function call.";

std::string Header(absl::string_view role) {
  return absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n");
}

void Tools(absl::Span<const JsonValue> tools, absl::string_view introduction,
           PromptBuilder* prompt) {
  prompt->Trusted(introduction, kAnswerFormat);
  for (const JsonValue& tool : tools) {
    prompt->Untrusted(PythonJson(tool, IndentedJson(4))).Trusted("\n\n");
  }
}

class Llama3 final : public SimpleTemplate {
 public:
  explicit Llama3(const Llama3Options& options)
      : SimpleTemplate(options.dated ? "llama-3.1" : "llama-3", {"<|eot_id|>", "<|eom_id|>"},
                       OutputFormat::kPlain),
        options_(options) {}

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    SLUICE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(request));
    for (const char* name : {"builtin_tools", "custom_tools"}) {
      if (conversation.Argument(name) != nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the template argument '", name, "' is not supported; send tools"));
      }
    }
    PromptBuilder prompt;
    prompt.Trusted(options_.bos);
    absl::Span<const ChatMessage> messages = conversation.messages;
    if (options_.dated) {
      SLUICE_RETURN_IF_ERROR(Preamble(conversation, &messages, &prompt));
    } else if (!conversation.tools.empty()) {
      return absl::InvalidArgumentError("the chat template of this model knows no tools");
    }
    for (const ChatMessage& message : messages) SLUICE_RETURN_IF_ERROR(Turn(message, &prompt));
    if (conversation.add_generation_prompt) prompt.Trusted(Header("assistant"));
    return prompt.Finish();
  }

 private:
  // The dated system message; tools go into it or into the first user message. Takes what it prints
  // from `messages`.
  static absl::Status Preamble(const Conversation& conversation,
                               absl::Span<const ChatMessage>* messages, PromptBuilder* prompt) {
    const bool has_tools = !conversation.tools.empty();
    const bool tools_in_user = !conversation.IsOff("tools_in_user_message");
    prompt->Trusted(Header("system"), has_tools ? "Environment: ipython\n" : "",
                    "Cutting Knowledge Date: December 2023\nToday Date: ");
    const JsonValue* date = conversation.Argument("date_string");
    prompt->Untrusted(date != nullptr && date->is_string() ? *date->AsString() : kDefaultDate);
    prompt->Trusted("\n\n");
    if (has_tools && !tools_in_user) Tools(conversation.tools, kToolsInSystemMessage, prompt);
    if (messages->front().role == "system") {
      prompt->Untrusted(PythonStrip(messages->front().content));
      messages->remove_prefix(1);
    }
    prompt->Trusted("<|eot_id|>");
    if (!has_tools || !tools_in_user) return absl::OkStatus();
    if (messages->empty()) {
      return absl::InvalidArgumentError("tools need a user message to stand in");
    }
    prompt->Trusted(Header("user"));
    Tools(conversation.tools, kToolsInUserMessage, prompt);
    prompt->Untrusted(PythonStrip(messages->front().content)).Trusted("<|eot_id|>");
    messages->remove_prefix(1);
    return absl::OkStatus();
  }

  absl::Status Turn(const ChatMessage& message, PromptBuilder* prompt) const {
    if (!options_.dated && (message.has_tool_calls || message.role == "tool")) {
      return absl::InvalidArgumentError("the chat template of this model knows no tool calls");
    }
    if (message.has_tool_calls) {
      if (message.tool_calls.size() != 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "this model supports one tool call in a message, not ", message.tool_calls.size()));
      }
      const ChatToolCall& call = message.tool_calls[0];
      prompt->Trusted(Header("assistant"), "{\"name\": \"").Untrusted(call.name);
      prompt->Trusted("\", \"parameters\": ");
      prompt->Untrusted(call.arguments == nullptr ? "{}" : PythonJson(*call.arguments));
      prompt->Trusted("}<|eot_id|>");
    } else if (message.role == "tool") {
      prompt->Trusted(Header("ipython"));
      prompt->Untrusted(PythonJson(JsonValue(message.content))).Trusted("<|eot_id|>");
    } else {
      prompt->Trusted(Header(message.role)).Untrusted(PythonStrip(message.content));
      prompt->Trusted("<|eot_id|>");
    }
    return absl::OkStatus();
  }

  const Llama3Options options_;
};

}  // namespace

std::unique_ptr<const ChatTemplate> Llama3Template(const Llama3Options& options) {
  return std::make_unique<Llama3>(options);
}

}  // namespace sluice::text
