// What the renderers of one family share: a name, end markers, a format.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/chat/chat_template.h"
#include "text/chat/conversation.h"

namespace sluice::text {

class SimpleTemplate : public ChatTemplate {
 public:
  SimpleTemplate(absl::string_view name, std::vector<std::string> end_of_turn, OutputFormat format)
      : name_(name), end_of_turn_(std::move(end_of_turn)), format_(format) {}

  absl::string_view name() const override { return name_; }
  absl::Span<const std::string> end_of_turn() const override { return end_of_turn_; }
  OutputFormat output_format() const override { return format_; }

 private:
  const std::string name_;
  const std::vector<std::string> end_of_turn_;
  const OutputFormat format_;
};

}  // namespace sluice::text
