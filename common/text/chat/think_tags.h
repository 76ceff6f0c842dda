// Reasoning that a client left inside the text of an assistant's turn.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "text/chat/conversation.h"

namespace sluice::text {

struct ReasonedText {
  absl::string_view reasoning;
  absl::string_view content;
};

// The reasoning and the answer of a turn. A turn whose reasoning is not a member of its own is cut
// at <think> and </think>, as the templates of Qwen3 and GLM do it.
ReasonedText SplitReasoning(const ChatMessage& message);

}  // namespace sluice::text
