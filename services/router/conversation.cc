#include "services/router/conversation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rpc/error.h"
#include "text/chat/chat_template.h"

namespace sluice::router {
namespace {

using formats::JsonValue;

constexpr int kMessagesMax = 4096;
constexpr int kToolsMax = 128;
constexpr formats::JsonLimits kJsonLimits = {
    .max_bytes = 4u << 20, .max_depth = 32, .max_values = 1u << 18};

absl::Status BadField(absl::string_view field, absl::string_view message) {
  return rpc::MakeError(v1::INVALID_FIELD, message, {.field = std::string(field)});
}

JsonValue Text(const std::string& text) { return JsonValue(text); }

JsonValue ToJson(const v1::ToolCall& call) {
  // Templates print objects their own way; text that is no object is theirs to judge.
  auto arguments = formats::ParseJson(call.arguments(), "arguments", kJsonLimits);
  const bool object = arguments.ok() && arguments->is_object();
  JsonValue::Object function = {
      {"name", Text(call.name())},
      {"arguments", object ? *std::move(arguments) : Text(call.arguments())}};
  return JsonValue(JsonValue::Object{{"id", Text(call.id())},
                                     {"type", Text("function")},
                                     {"function", JsonValue(std::move(function))}});
}

// A message in the words of the OpenAI API. Members that the client left out stay out: templates
// ask for them.
JsonValue ToJson(const v1::Message& message) {
  JsonValue::Object object = {{"role", Text(message.role())}, {"content", Text(message.content())}};
  if (message.has_reasoning_content())
    object.emplace_back("reasoning_content", Text(message.reasoning_content()));
  if (!message.tool_call_id().empty())
    object.emplace_back("tool_call_id", Text(message.tool_call_id()));
  if (!message.name().empty()) object.emplace_back("name", Text(message.name()));
  if (!message.tool_calls().empty()) {
    JsonValue::Array calls;
    for (const v1::ToolCall& call : message.tool_calls()) calls.push_back(ToJson(call));
    object.emplace_back("tool_calls", JsonValue(std::move(calls)));
  }
  return JsonValue(std::move(object));
}

absl::StatusOr<JsonValue> ReadTools(const v1::Messages& messages) {
  if (messages.tools_size() > kToolsMax)
    return BadField("tools", absl::StrCat("more than ", kToolsMax, " tools"));
  JsonValue::Array tools;
  for (int i = 0; i < messages.tools_size(); ++i) {
    auto tool = formats::ParseJson(messages.tools(i), absl::StrCat("tools[", i, "]"), kJsonLimits);
    if (!tool.ok()) return BadField("tools", tool.status().message());
    const JsonValue* function = tool->Find("function");
    if (function == nullptr || !function->GetString("name").ok()) {
      return BadField("tools",
                      absl::StrCat("tools[", i, "] is no object with a function that has a name"));
    }
    tools.push_back(*std::move(tool));
  }
  return tools.empty() ? JsonValue() : JsonValue(std::move(tools));
}

absl::StatusOr<text::ChatRequest> ReadRequest(const v1::Messages& messages) {
  text::ChatRequest chat;
  JsonValue::Array conversation;
  for (const v1::Message& message : messages.messages()) conversation.push_back(ToJson(message));
  chat.messages = JsonValue(std::move(conversation));
  if (messages.has_add_generation_prompt())
    chat.add_generation_prompt = messages.add_generation_prompt();
  if (messages.tool_choice() != "none") {
    SLUICE_ASSIGN_OR_RETURN(chat.tools, ReadTools(messages));
  }
  if (messages.template_args().empty()) return chat;
  const auto arguments = formats::ParseJson(messages.template_args(), "template_args", kJsonLimits);
  if (!arguments.ok()) return BadField("template_args", arguments.status().message());
  if (!arguments->is_object()) return BadField("template_args", "template_args is no JSON object");
  chat.arguments.assign(arguments->members().begin(), arguments->members().end());
  return chat;
}

absl::Status CheckToolChoice(const std::string& choice) {
  if (choice.empty() || choice == "auto" || choice == "none") return absl::OkStatus();
  return rpc::MakeError(v1::NOT_SUPPORTED,
                        absl::StrCat("tool_choice '", choice.substr(0, 64),
                                     "' would force a call, which needs constrained decoding; "
                                     "'auto' and 'none' are supported"),
                        {.field = "tool_choice"});
}

}  // namespace

size_t BytesOf(const v1::Messages& messages) {
  size_t bytes = messages.template_args().size();
  for (const std::string& tool : messages.tools()) bytes += tool.size();
  for (const v1::Message& message : messages.messages()) {
    bytes += message.content().size() + message.reasoning_content().size() + message.name().size() +
             message.tool_call_id().size();
    for (const v1::ToolCall& call : message.tool_calls()) {
      bytes += call.id().size() + call.name().size() + call.arguments().size();
    }
  }
  return bytes;
}

absl::StatusOr<PreparedChat> PrepareChat(const v1::Messages& messages,
                                         const services::TextModel& model) {
  if (messages.messages_size() > kMessagesMax)
    return BadField("messages", absl::StrCat("more than ", kMessagesMax, " messages"));
  SLUICE_RETURN_IF_ERROR(CheckToolChoice(messages.tool_choice()));
  SLUICE_ASSIGN_OR_RETURN(const text::ChatRequest chat, ReadRequest(messages));
  auto prompt = model.EncodeChat(chat);
  if (absl::IsInvalidArgument(prompt.status()) || absl::IsFailedPrecondition(prompt.status())) {
    return BadField("messages", prompt.status().message());
  }
  SLUICE_RETURN_IF_ERROR(prompt.status());
  PreparedChat prepared;
  prepared.prompt = *std::move(prompt);
  prepared.output.format = model.chat_template->output_format();
  prepared.output.split_reasoning = !messages.reasoning_in_text();
  prepared.output.inside_thinking = prepared.prompt.inside_thinking;
  if (!chat.tools.array().empty()) {
    prepared.output.calls.tools = std::make_shared<text::ToolSchemas>(chat.tools);
    for (const v1::Message& message : messages.messages()) {
      prepared.output.calls.calls_before += static_cast<uint32_t>(message.tool_calls_size());
    }
  }
  return prepared;
}

}  // namespace sluice::router
