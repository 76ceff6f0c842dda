// The --chat file: {"messages", "tools"?, "add_generation_prompt"?, "chat_template_kwargs"?}.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "text/chat/chat_template.h"

namespace sluice::cli {

// Errors: NOT_FOUND, or INVALID_ARGUMENT naming what is wrong.
absl::StatusOr<text::ChatRequest> ReadChatFile(const std::string& path);

}  // namespace sluice::cli
