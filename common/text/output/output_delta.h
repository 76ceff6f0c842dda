// New output of a model, sorted into what clients read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::text {

// More of one tool call. `id` and `name` come once, with the first delta of a call.
struct ToolCallDelta {
  uint32_t index = 0;  // of the call in this answer
  std::string id;
  std::string name;
  std::string arguments;  // JSON text

  friend bool operator==(const ToolCallDelta& a, const ToolCallDelta& b) {
    return a.index == b.index && a.id == b.id && a.name == b.name && a.arguments == b.arguments;
  }
};

struct OutputDelta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallDelta> tool_calls;

  // Appends to the arguments of call `index`, which has begun in this delta or an earlier one.
  void AppendArguments(uint32_t index, absl::string_view text) {
    if (tool_calls.empty() || tool_calls.back().index != index)
      tool_calls.push_back({index, "", "", ""});
    tool_calls.back().arguments.append(text.data(), text.size());
  }
};

}  // namespace sluice::text
