// The renderer that stands for the text of a model's chat template.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "text/chat/chat_template.h"

namespace sluice::text {

// What a model's files say about its prompts.
struct TemplateSource {
  std::string text;  // of the template
  // Tokens that templates print by name; "" where the model has none.
  std::string bos_token, eos_token, pad_token;
};

// A renderer written here whose family the text belongs to, by the rules in README.md; null for
// every other text.
std::unique_ptr<const ChatTemplate> RecognizeFamily(const TemplateSource& source);

}  // namespace sluice::text
