// The --chat file: {"messages", "tools"?, "add_generation_prompt"?, "chat_template_kwargs"?}.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/chat_template.h"

namespace sluice::cli {

struct ChatFile {
  std::vector<text::ChatMessage> messages;
  text::ChatOptions options;
};

// Errors: NOT_FOUND, or INVALID_ARGUMENT naming what is wrong; tools and unknown template arguments are refused, not ignored.
absl::StatusOr<ChatFile> ReadChatFile(const std::string& path);

}  // namespace sluice::cli
