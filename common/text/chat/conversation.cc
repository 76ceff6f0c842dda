#include "text/chat/conversation.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

constexpr formats::JsonLimits kArgumentsLimits = {
    .max_bytes = 4u << 20, .max_depth = 32, .max_values = 1u << 18};

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, " ", what));
}

// A string member; "" when it is left out or null.
absl::StatusOr<absl::string_view> Text(const JsonValue& object, absl::string_view name,
                                       absl::string_view where) {
  const JsonValue* value = object.Find(name);
  if (value == nullptr || value->is_null()) return absl::string_view();
  if (!value->is_string()) {
    return Bad(absl::StrCat(where, ".", name),
               absl::StrCat("must be a string, not ", value->kind()));
  }
  return value->AsString();
}

absl::StatusOr<std::string> ReadContent(const JsonValue& message, absl::string_view where) {
  const JsonValue* content = message.Find("content");
  if (content == nullptr || content->is_null()) return std::string();
  if (content->is_string()) return std::string(*content->AsString());
  if (!content->is_array()) {
    return Bad(absl::StrCat(where, ".content"),
               absl::StrCat("must be a string or a list of text parts, not ", content->kind()));
  }
  std::string joined;
  for (const JsonValue& part : content->array()) {
    const auto text = part.GetString("text");
    const auto type = part.GetString("type");
    if (!text.ok() || (type.ok() && *type != "text")) {
      return Bad(absl::StrCat(where, ".content"), "has a part that is not text");
    }
    absl::StrAppend(&joined, *text);
  }
  return joined;
}

absl::StatusOr<ChatToolCall> ReadToolCall(const JsonValue& value, absl::string_view where) {
  // Both {"function": {"name", ...}} and its inside are in use.
  const JsonValue* function = value.Find("function");
  if (function == nullptr) function = &value;
  ChatToolCall call;
  SLUICE_ASSIGN_OR_RETURN(call.id, Text(value, "id", where));
  SLUICE_ASSIGN_OR_RETURN(call.name, Text(*function, "name", where));
  if (call.name.empty()) return Bad(where, "has no function name");
  call.arguments = function->Find("arguments");
  if (call.arguments != nullptr && call.arguments->is_null()) call.arguments = nullptr;
  return call;
}

absl::StatusOr<ChatMessage> ReadMessage(const JsonValue& value, const std::string& where) {
  if (!value.is_object()) return Bad(where, absl::StrCat("is ", value.kind(), ", no object"));
  ChatMessage message;
  SLUICE_ASSIGN_OR_RETURN(message.role, Text(value, "role", where));
  if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
      message.role != "tool") {
    return Bad(absl::StrCat(where, ".role"),
               absl::StrCat("is '", message.role.substr(0, 64),
                            "'; the chat template of this model knows system, user, assistant and "
                            "tool"));
  }
  SLUICE_ASSIGN_OR_RETURN(message.name, Text(value, "name", where));
  SLUICE_ASSIGN_OR_RETURN(message.content, ReadContent(value, where));
  SLUICE_ASSIGN_OR_RETURN(message.tool_call_id, Text(value, "tool_call_id", where));
  if (const JsonValue* reasoning = value.Find("reasoning_content");
      reasoning != nullptr && !reasoning->is_null()) {
    SLUICE_ASSIGN_OR_RETURN(message.reasoning, Text(value, "reasoning_content", where));
  }
  const JsonValue* calls = value.Find("tool_calls");
  message.has_tool_calls = calls != nullptr;
  if (calls == nullptr || calls->is_null()) return message;
  if (!calls->is_array()) return Bad(absl::StrCat(where, ".tool_calls"), "is no list");
  for (size_t i = 0; i < calls->array().size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(
        ChatToolCall call,
        ReadToolCall(calls->array()[i], absl::StrCat(where, ".tool_calls[", i, "]")));
    message.tool_calls.push_back(call);
  }
  return message;
}

}  // namespace

std::string PromptText(absl::Span<const Segment> segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

bool EndsInsideThinking(absl::Span<const Segment> segments) {
  return !segments.empty() && segments.back().trusted &&
         absl::EndsWith(PythonStrip(segments.back().text, Side::kRight), "<think>");
}

bool IsTrue(const JsonValue& value) {
  if (value.is_string()) return !value.AsString()->empty();
  if (value.is_array()) return !value.array().empty();
  if (value.is_object()) return !value.members().empty();
  if (value.is_bool()) return *value.AsBool();
  return value.is_number() && *value.AsDouble() != 0;
}

const JsonValue* Conversation::Argument(absl::string_view name) const {
  for (const JsonValue::Member& member : *arguments) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

bool Conversation::IsOff(absl::string_view name) const {
  const JsonValue* value = Argument(name);
  return value != nullptr && !IsTrue(*value);
}

bool Conversation::IsOn(absl::string_view name) const {
  const JsonValue* value = Argument(name);
  return value != nullptr && IsTrue(*value);
}

absl::StatusOr<Conversation> ReadConversation(const ChatRequest& request) {
  if (!request.messages.is_array() || request.messages.array().empty()) {
    return absl::InvalidArgumentError("messages must be a list of at least one message");
  }
  if (!request.tools.is_null() && !request.tools.is_array()) {
    return absl::InvalidArgumentError("tools must be a list");
  }
  for (const JsonValue& tool : request.tools.array()) {
    if (!tool.is_object())
      return absl::InvalidArgumentError("tools has an entry that is no object");
  }
  Conversation conversation;
  conversation.add_generation_prompt = request.add_generation_prompt;
  conversation.arguments = &request.arguments;
  conversation.tools = request.tools.array();
  for (size_t i = 0; i < request.messages.array().size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(ChatMessage message, ReadMessage(request.messages.array()[i],
                                                             absl::StrCat("messages[", i, "]")));
    conversation.messages.push_back(std::move(message));
  }
  return conversation;
}

absl::StatusOr<const JsonValue*> ArgumentsObject(const ChatToolCall& call, JsonValue* parsed) {
  *parsed = JsonValue(JsonValue::Object());
  const JsonValue* arguments = call.arguments == nullptr ? parsed : call.arguments;
  if (arguments->is_string()) {
    const absl::string_view text = *arguments->AsString();
    if (!PythonStrip(text).empty()) {
      auto value = formats::ParseJson(text, "arguments", kArgumentsLimits);
      if (value.ok()) *parsed = *std::move(value);
      if (!value.ok()) *parsed = JsonValue();
    }
    arguments = parsed;
  }
  if (arguments->is_object()) return arguments;
  return absl::InvalidArgumentError(absl::StrCat("the arguments of the call of '",
                                                 call.name.substr(0, 64), "' are no JSON object"));
}

JsonValue TextMessage(absl::string_view role, absl::string_view content) {
  return JsonValue(JsonValue::Object{{"role", JsonValue(std::string(role))},
                                     {"content", JsonValue(std::string(content))}});
}

}  // namespace sluice::text
