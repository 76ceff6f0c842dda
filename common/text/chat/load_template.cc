#include "text/chat/load_template.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

// Conversations in which templates of one family are known to differ.
constexpr absl::string_view kProbes = R"([
  {"messages": [{"role": "user", "content": " Hi\n"}], "kwargs": {}},
  {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}],
   "kwargs": {"enable_thinking": false, "thinking": false}},
  {"messages": [{"role": "user", "content": "Q/nothink"},
                {"role": "assistant", "content": "<think>\nr0\n</think>\n\nA"},
                {"role": "user", "content": "P"},
                {"role": "assistant", "content": "B", "reasoning_content": "r1"},
                {"role": "user", "content": "R"}],
   "kwargs": {"clear_thinking": false, "preserve_thinking": true, "reasoning_effort": "high"}},
  {"messages": [{"role": "user", "content": "Q"},
                {"role": "assistant", "content": "A", "reasoning_content": "r1"},
                {"role": "user", "content": "P", "name": "ann"},
                {"role": "assistant", "content": "B", "reasoning_content": "r2"},
                {"role": "system", "content": "S"},
                {"role": "user", "content": "R"},
                {"role": "assistant", "content": "", "reasoning_content": "r3"}],
   "kwargs": {"reasoning_effort": "low"}},
  {"messages": [{"role": "user", "content": "Q"},
                {"role": "assistant", "content": "A", "tool_calls": [
                  {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"k": 1, "s": "v"}}}]},
                {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "1"},
                {"role": "assistant", "content": "B"},
                {"role": "user", "content": "R"}],
   "kwargs": {}, "tools": [{"type": "function", "function": {"name": "f", "description": "F",
     "parameters": {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}}}]},
  {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
                  {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}},
                  {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"l": [1, {"a": null}]}}}]},
                {"role": "tool", "tool_call_id": "c2", "content": "2"},
                {"role": "tool", "tool_call_id": "c1", "content": "1"}],
   "kwargs": {"tools_in_user_message": false}, "tools": [{"type": "function", "function": {"name": "f"}}]}
])";

std::vector<ChatRequest> Probes() {
  const auto probes = formats::ParseJson(kProbes, "probes");
  SLUICE_CHECK(probes.ok()) << probes.status().message();
  std::vector<ChatRequest> requests;
  for (const JsonValue& probe : probes->array()) {
    ChatRequest request;
    request.messages = *probe.Find("messages");
    if (const JsonValue* tools = probe.Find("tools")) request.tools = *tools;
    const auto arguments = probe.Find("kwargs")->members();
    request.arguments.assign(arguments.begin(), arguments.end());
    request.add_generation_prompt = requests.size() != 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

// Do both write the same wherever both write anything? Each refuses some conversations that the
// other takes: a renderer what would be lost, a template what it happens to stumble over.
bool Agree(const ChatTemplate& family, const ChatTemplate& text) {
  for (const ChatRequest& probe : Probes()) {
    const auto expected = text.Render(probe), rendered = family.Render(probe);
    if (expected.ok() && rendered.ok() && PromptText(*expected) != PromptText(*rendered))
      return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadChatTemplate(const TemplateSource& source) {
  auto family = RecognizeFamily(source);
  auto text = JinjaChatTemplate(source);
  if (family != nullptr && (!text.ok() || Agree(*family, **text))) return family;
  return text;
}

}  // namespace sluice::text
