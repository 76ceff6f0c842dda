#include "http/openai_messages.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/python_json.h"

namespace sluice::http {
namespace {

using formats::JsonValue;

constexpr size_t kMessagesMax = 4096;
constexpr size_t kToolsMax = 128;
constexpr size_t kCallsMax = 1024;  // in one message
constexpr size_t kNameBytesMax = 256;
constexpr size_t kTextBytesMax =
    std::numeric_limits<size_t>::max();  // the body's limit holds already

std::string JsonText(const JsonValue& value) {
  return text::PythonJson(value, {.item_separator = ",", .key_separator = ":"});
}

// One content: a string, or a list of parts of which only text is understood; parts are joined
// without anything between them.
std::string ReadContent(bool required, JsonFields* fields) {
  const JsonValue* content = fields->Take("content");
  if (content == nullptr) {
    if (required)
      fields->Fail("content", "is missing; it must be a string or a list of text parts");
    return "";
  }
  if (const auto text = content->AsString(); text.ok()) return std::string(*text);
  if (!content->is_array()) {
    fields->Fail("content",
                 absl::StrCat("must be a string or a list of text parts, not ", content->kind()));
  }
  std::string joined;
  for (size_t i = 0; i < content->array().size() && fields->status().ok(); ++i) {
    const JsonValue& part = content->array()[i];
    const std::string name = absl::StrCat("content[", i, "]");
    const JsonValue* type = part.Find("type");
    const JsonValue* text = part.Find("text");
    if (type == nullptr || !type->is_string()) {
      fields->Fail(name, "must be an object with a 'type'");
    } else if (!IsString(*type, "text")) {
      fields->Fail(absl::StrCat(name, ".type"),
                   absl::StrCat("'", *type->AsString(), "' is not supported; only 'text' is"));
    } else if (text == nullptr || !text->is_string()) {
      fields->Fail(absl::StrCat(name, ".text"), "must be a string");
    } else {
      absl::StrAppend(&joined, *text->AsString());
    }
  }
  return joined;
}

// {"id", "type": "function", "function": {"name", "arguments": TEXT}}; an object of arguments is
// taken too.
void ReadToolCall(const JsonValue& value, const std::string& path, JsonFields* message,
                  v1::ToolCall* call) {
  const JsonValue* function = value.Find("function");
  if (function == nullptr || !function->is_object()) {
    return message->Fail(path, "must be an object with a 'function'");
  }
  JsonFields outer(value, message->PathOf(absl::StrCat(path, ".")));
  call->set_id(outer.String("id", kNameBytesMax).value_or(""));
  message->Adopt(outer.status());
  JsonFields inner(*function, message->PathOf(absl::StrCat(path, ".function.")));
  call->set_name(inner.String("name", kNameBytesMax).value_or(""));
  if (call->name().empty()) inner.Fail("name", "must be a string, not empty");
  const JsonValue* arguments = inner.Take("arguments");
  if (arguments == nullptr) {
    call->set_arguments("{}");
  } else if (arguments->is_string()) {
    call->set_arguments(std::string(*arguments->AsString()));
  } else if (arguments->is_object()) {
    call->set_arguments(JsonText(*arguments));
  } else {
    inner.Fail("arguments", absl::StrCat("must be JSON text, not ", arguments->kind()));
  }
  message->Adopt(inner.status());
}

void ReadToolCalls(JsonFields* fields, v1::Message* message) {
  const JsonValue* calls = fields->Take("tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array() || calls->array().size() > kCallsMax) {
    return fields->Fail("tool_calls",
                        absl::StrCat("must be a list of at most ", kCallsMax, " calls"));
  }
  for (size_t i = 0; i < calls->array().size(); ++i) {
    ReadToolCall(calls->array()[i], absl::StrCat("tool_calls[", i, "]"), fields,
                 message->add_tool_calls());
  }
}

void ReadRole(JsonFields* fields, v1::Message* message) {
  const std::string role = fields->String("role", kNameBytesMax).value_or("");
  if (role == "developer") {
    message->set_role("system");
  } else if (role == "system" || role == "user" || role == "assistant" || role == "tool") {
    message->set_role(role);
  } else if (role == "function") {
    fields->Fail("role", "'function' is not supported; use 'tool'");
  } else {
    fields->Fail("role", "must be 'system', 'developer', 'user', 'assistant' or 'tool'");
  }
}

absl::Status ReadMessage(const JsonValue& value, size_t index, v1::Message* message,
                         std::vector<std::string>* ignored) {
  JsonFields fields(value, absl::StrCat("messages[", index, "]."));
  ReadRole(&fields, message);
  if (message->role() == "assistant") {
    ReadToolCalls(&fields, message);
    // Both names are in use for what an earlier answer carried.
    const auto reasoning = fields.String("reasoning_content", kTextBytesMax);
    const auto short_name = fields.String("reasoning", kTextBytesMax);
    if (reasoning || short_name)
      message->set_reasoning_content(reasoning ? *reasoning : *short_name);
  }
  if (message->role() == "tool") {
    message->set_tool_call_id(fields.String("tool_call_id", kNameBytesMax).value_or(""));
  }
  message->set_name(fields.String("name", kNameBytesMax).value_or(""));
  for (const absl::string_view name : {"tool_calls", "function_call", "audio"}) {
    const JsonValue* member = fields.Take(name);
    const bool read = name == "tool_calls" && message->role() == "assistant";
    if (member != nullptr && !read && !(member->is_array() && member->array().empty())) {
      fields.Fail(name, "is not supported; leave it out");
    }
  }
  fields.Take("refusal");  // what an earlier answer of this API carries
  message->set_content(ReadContent(/*required=*/message->tool_calls().empty(), &fields));
  for (std::string& name : fields.Unread()) ignored->push_back(std::move(name));
  return fields.status();
}

void ReadTools(JsonFields* fields, v1::Messages* out) {
  const JsonValue* tools = fields->Take("tools");
  if (tools != nullptr && (!tools->is_array() || tools->array().size() > kToolsMax)) {
    return fields->Fail("tools", absl::StrCat("must be a list of at most ", kToolsMax, " tools"));
  }
  const absl::Span<const JsonValue> list =
      tools == nullptr ? absl::Span<const JsonValue>() : tools->array();
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonValue& tool = list[i];
    const JsonValue* function = tool.Find("function");
    const JsonValue* type = tool.Find("type");
    if (type != nullptr && !IsString(*type, "function")) {
      return fields->Fail(absl::StrCat("tools[", i, "].type"), "must be 'function'");
    }
    if (function == nullptr || !function->GetString("name").ok()) {
      return fields->Fail(absl::StrCat("tools[", i, "].function"),
                          "must be an object with a 'name'");
    }
    out->add_tools(JsonText(tool));
  }
  const JsonValue* choice = fields->Take("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    out->set_tool_choice(std::string(*choice->AsString()));
  } else if (choice->is_object()) {
    out->set_tool_choice("function");  // a named one
  } else {
    fields->Fail("tool_choice",
                 absl::StrCat("must be a string or an object, not ", choice->kind()));
  }
}

void ReadTemplateArguments(JsonFields* fields, v1::Messages* out) {
  JsonValue::Object arguments;
  const JsonValue* given = fields->Take("chat_template_kwargs");
  if (given != nullptr && !given->is_object()) {
    return fields->Fail("chat_template_kwargs",
                        absl::StrCat("must be an object, not ", given->kind()));
  }
  if (given != nullptr) arguments.assign(given->members().begin(), given->members().end());
  // Templates of models that can be told how hard to think read it by this name.
  const auto effort = fields->String("reasoning_effort", kNameBytesMax);
  if (effort && (given == nullptr || given->Find("reasoning_effort") == nullptr)) {
    arguments.emplace_back("reasoning_effort", JsonValue(*effort));
  }
  if (!arguments.empty()) out->set_template_args(JsonText(JsonValue(std::move(arguments))));
}

}  // namespace

bool IsString(const JsonValue& value, absl::string_view text) {
  const auto read = value.AsString();
  return read.ok() && *read == text;
}

void ReadMessages(JsonFields* fields, v1::Messages* out, std::vector<std::string>* ignored) {
  const JsonValue* messages = fields->Take("messages");
  if (messages == nullptr || !messages->is_array() || messages->array().empty()) {
    return fields->Fail("messages", "must be a list of at least one message");
  }
  if (messages->array().size() > kMessagesMax) {
    return fields->Fail("messages",
                        absl::StrCat("has ", messages->array().size(), " entries; at most ",
                                     kMessagesMax, " are allowed"));
  }
  for (size_t i = 0; i < messages->array().size() && fields->status().ok(); ++i) {
    const JsonValue& message = messages->array()[i];
    if (!message.is_object()) {
      return fields->Fail(absl::StrCat("messages[", i, "]"),
                          absl::StrCat("must be an object, not ", message.kind()));
    }
    fields->Adopt(ReadMessage(message, i, out->add_messages(), ignored));
  }
  ReadTools(fields, out);
  ReadTemplateArguments(fields, out);
  if (const auto value = fields->Bool("separate_reasoning")) out->set_reasoning_in_text(!*value);
  if (const auto value = fields->Bool("add_generation_prompt")) {
    out->set_add_generation_prompt(*value);
  }
}

}  // namespace sluice::http
