#include "text/chat/think_tags.h"

#include "text/python_text.h"

namespace sluice::text {

ReasonedText SplitReasoning(const ChatMessage& message) {
  constexpr absl::string_view kBegin = "<think>", kEnd = "</think>";
  const absl::string_view content = message.content;
  if (message.reasoning.has_value()) return {*message.reasoning, content};
  const size_t first = content.find(kEnd);
  if (first == absl::string_view::npos) return {"", content};
  absl::string_view reasoning = PythonStrip(content.substr(0, first), "\n", Side::kRight);
  const size_t begin = reasoning.rfind(kBegin);
  if (begin != absl::string_view::npos) reasoning.remove_prefix(begin + kBegin.size());
  return {PythonStrip(reasoning, "\n", Side::kLeft),
          PythonStrip(content.substr(content.rfind(kEnd) + kEnd.size()), "\n", Side::kLeft)};
}

}  // namespace sluice::text
