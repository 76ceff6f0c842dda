// A conversation as the renderers written here read it: checked, and with every member by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "text/chat/chat_template.h"

namespace sluice::text {

struct ChatToolCall {
  absl::string_view id;
  absl::string_view name;
  // A JSON value, usually an object or its text; null when there are none.
  const formats::JsonValue* arguments = nullptr;
};

struct ChatMessage {
  absl::string_view role;  // "system", "user", "assistant" or "tool"
  absl::string_view name;
  std::string content;  // text parts are joined; null is empty
  std::optional<absl::string_view> reasoning;
  std::vector<ChatToolCall> tool_calls;
  bool has_tool_calls = false;  // the member is there, even if it is empty
  absl::string_view tool_call_id;
};

// Points into the request, which must outlive it.
struct Conversation {
  std::vector<ChatMessage> messages;
  absl::Span<const formats::JsonValue> tools;
  bool add_generation_prompt = true;
  const formats::JsonValue::Object* arguments = nullptr;

  // A template argument, or null when it is left out.
  const formats::JsonValue* Argument(absl::string_view name) const;
  // Is the argument given, and false (true) as Python sees it?
  bool IsOff(absl::string_view name) const;
  bool IsOn(absl::string_view name) const;
};

// INVALID_ARGUMENT naming the member: no messages, an unknown role, content that is neither text
// nor text parts, a malformed tool call or tool.
absl::StatusOr<Conversation> ReadConversation(const ChatRequest& request);

// The arguments of a call as an object. Some clients send its JSON text: it is parsed into
// `*parsed`. INVALID_ARGUMENT naming the call when it is neither.
absl::StatusOr<const formats::JsonValue*> ArgumentsObject(const ChatToolCall& call,
                                                          formats::JsonValue* parsed);

// Python's truth: not null, false, 0 or empty.
bool IsTrue(const formats::JsonValue& value);

// A message of a client that has only text.
formats::JsonValue TextMessage(absl::string_view role, absl::string_view content);

}  // namespace sluice::text
