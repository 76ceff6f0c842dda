// The chat template of a model: a renderer written here, or the model's own text.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "text/chat/chat_template.h"
#include "text/chat/recognize.h"

namespace sluice::text {

// Runs the text of the template itself. INVALID_ARGUMENT for a text that is wrong, UNIMPLEMENTED
// for constructs that are not supported; both name the line.
absl::StatusOr<std::unique_ptr<const ChatTemplate>> JinjaChatTemplate(const TemplateSource& source);

// The renderer of the family that the text belongs to, if it writes the same prompts as the text
// does for a set of probing conversations, or if the text cannot be run; otherwise the text itself.
// Errors: those of JinjaChatTemplate.
absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadChatTemplate(const TemplateSource& source);

}  // namespace sluice::text
