#include "services/cli/chat_file.h"

#include <boost/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

namespace json = boost::json;

absl::StatusOr<std::string> StringField(const json::object& object, const char* key, bool required) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) {
    if (!required) return std::string();
    return absl::InvalidArgumentError(absl::StrCat("chat file: a message has no '", key, "'"));
  }
  if (!value->is_string()) return absl::InvalidArgumentError(absl::StrCat("chat file: '", key, "' is not a string"));
  return std::string(value->get_string().c_str(), value->get_string().size());
}

absl::Status ReadKwargs(const json::object& kwargs, text::ChatOptions* options) {
  for (const auto& item : kwargs) {
    if (item.key() == "enable_thinking" && item.value().is_bool()) {
      options->enable_thinking = item.value().get_bool();
    } else if (item.key() == "date_string" && item.value().is_string()) {
      options->date = std::string(item.value().get_string().c_str());
    } else {
      return absl::InvalidArgumentError(absl::StrCat("chat file: template argument '", std::string(item.key()),
                                                     "' is not supported; known: enable_thinking, date_string"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatFile> ReadChatFile(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  boost::system::error_code error;
  const json::value root = json::parse(text, error);
  if (error || !root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("chat file ", path, ": ", error ? error.message() : "not a JSON object"));
  }
  const json::object& object = root.get_object();
  const json::value* messages = object.if_contains("messages");
  if (messages == nullptr || !messages->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("chat file ", path, ": 'messages' is not a list"));
  }
  ChatFile chat;
  for (const json::value& entry : messages->get_array()) {
    if (!entry.is_object()) return absl::InvalidArgumentError("chat file: a message is not an object");
    text::ChatMessage message;
    SLUICE_ASSIGN_OR_RETURN(message.role, StringField(entry.get_object(), "role", true));
    SLUICE_ASSIGN_OR_RETURN(message.content, StringField(entry.get_object(), "content", true));
    SLUICE_ASSIGN_OR_RETURN(message.reasoning, StringField(entry.get_object(), "reasoning_content", false));
    chat.messages.push_back(std::move(message));
  }
  const json::value* tools = object.if_contains("tools");
  if (tools != nullptr && !tools->is_null() && !(tools->is_array() && tools->get_array().empty())) {
    return absl::UnimplementedError("chat file: tools are not supported by the templates of this build");
  }
  if (const json::value* add = object.if_contains("add_generation_prompt")) {
    if (!add->is_bool()) return absl::InvalidArgumentError("chat file: 'add_generation_prompt' is not true or false");
    chat.options.add_generation_prompt = add->get_bool();
  }
  const json::value* kwargs = object.if_contains("chat_template_kwargs");
  if (kwargs != nullptr && kwargs->is_object()) SLUICE_RETURN_IF_ERROR(ReadKwargs(kwargs->get_object(), &chat.options));
  return chat;
}

}  // namespace sluice::cli
