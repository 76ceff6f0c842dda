#include "services/cli/chat_file.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "services/cli/command.h"

namespace sluice::cli {

using formats::JsonValue;

absl::StatusOr<text::ChatRequest> ReadChatFile(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string content, ReadTextFile(path));
  SLUICE_ASSIGN_OR_RETURN(const JsonValue file,
                          formats::ParseJson(content, absl::StrCat("chat file ", path)));
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("chat file ", path, ": ", what));
  };
  const JsonValue* messages = file.Find("messages");
  if (messages == nullptr || !messages->is_array()) return bad("'messages' is not a list");
  text::ChatRequest request;
  request.messages = *messages;
  if (const JsonValue* tools = file.Find("tools")) {
    if (!tools->is_null() && !tools->is_array()) return bad("'tools' is not a list");
    if (!tools->array().empty()) request.tools = *tools;
  }
  const auto add = file.GetBoolOr("add_generation_prompt", true);
  if (!add.ok()) return bad(add.status().message());
  request.add_generation_prompt = *add;
  if (const JsonValue* kwargs = file.Find("chat_template_kwargs");
      kwargs != nullptr && !kwargs->is_null()) {
    if (!kwargs->is_object()) return bad("'chat_template_kwargs' is not an object");
    request.arguments.assign(kwargs->members().begin(), kwargs->members().end());
  }
  return request;
}

}  // namespace sluice::cli
