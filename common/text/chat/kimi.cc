// Kimi K2, K2-Thinking, and K2.5 and later.
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/chat/families.h"
#include "text/chat/prompt_builder.h"
#include "text/chat/simple_template.h"
#include "text/chat/typescript_tools.h"
#include "text/python_json.h"

namespace sluice::text {
namespace {

using formats::JsonValue;
using Generation = KimiOptions::Generation;

constexpr absl::string_view kDefaultSystem =
    "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot "
    "AI.<|im_end|>";

// The names that calls of a conversation get, and results take.
class CallNames {
 public:
  explicit CallNames(bool renumber) : renumber_(renumber) {}

  std::string OfCall(const ChatToolCall& call) {
    if (!renumber_) return std::string(call.id);
    std::string name = absl::StrCat("functions.", call.name, ":", counter_++);
    open_.push_back(name);
    return name;
  }
  std::string OfResult(const ChatMessage& result) {
    if (!renumber_) return std::string(result.tool_call_id);
    if (open_.empty()) {
      return absl::StrCat("functions.", result.name.empty() ? "unknown" : result.name, ":",
                          counter_);
    }
    std::string name = std::move(open_.front());
    open_.pop_front();
    return name;
  }

 private:
  const bool renumber_;
  int counter_ = 0;
  std::deque<std::string> open_;
};

// How many messages, from the first on, are history whose reasoning is dropped.
size_t HistoryLength(absl::Span<const ChatMessage> messages, bool first_answer) {
  size_t length = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant" || !messages[i].tool_calls.empty()) continue;
    length = i + 1;
    if (first_answer) break;
  }
  return length;
}

absl::string_view NameOf(Generation generation) {
  switch (generation) {
    case Generation::kK2:
      return "kimi-k2-instruct";
    case Generation::kK2Thinking:
      return "kimi-k2-thinking";
    case Generation::kK25:
      return "kimi-k2.5";
  }
  return "";
}

class Kimi final : public SimpleTemplate {
 public:
  explicit Kimi(const KimiOptions& options)
      : SimpleTemplate(NameOf(options.generation), {"<|im_end|>", "[EOS]"}, OutputFormat::kKimi),
        options_(options) {}

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    SLUICE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(request));
    const absl::Span<const ChatMessage> messages = conversation.messages;
    PromptBuilder prompt;
    Tools(request.tools, &prompt);
    if (messages[0].role != "system" && options_.generation != Generation::kK25) {
      prompt.Trusted(kDefaultSystem, options_.generation == Generation::kK2 ? "\n" : "");
    }
    const bool keep_all =
        options_.generation == Generation::kK25 && conversation.IsOn("preserve_thinking");
    const size_t history = keep_all ? 0 : HistoryLength(messages, options_.split_at_first_answer);
    CallNames names(options_.renumber_calls);
    for (size_t i = 0; i < messages.size(); ++i) Turn(messages[i], i >= history, &names, &prompt);
    if (conversation.add_generation_prompt) {
      prompt.Trusted("<|im_assistant|>assistant<|im_middle|>");
      if (options_.generation == Generation::kK25) {
        prompt.Trusted(conversation.IsOff("thinking") ? "<think></think>" : "<think>");
      }
    }
    return prompt.Finish();
  }

 private:
  void Tools(const JsonValue& tools, PromptBuilder* prompt) const {
    if (tools.array().empty()) return;
    prompt->Trusted("<|im_system|>tool_declare<|im_middle|>");
    if (options_.generation != Generation::kK25) {
      prompt->Untrusted(PythonJson(tools));
    } else {
      prompt->Untrusted(KimiToolDeclarations(tools));
    }
    prompt->Trusted("<|im_end|>");
  }

  void Turn(const ChatMessage& message, bool keep_reasoning, CallNames* names,
            PromptBuilder* prompt) const {
    const absl::string_view marker = message.role == "user"        ? "<|im_user|>"
                                     : message.role == "assistant" ? "<|im_assistant|>"
                                                                   : "<|im_system|>";
    prompt->Trusted(marker).Untrusted(message.name.empty() ? message.role : message.name);
    prompt->Trusted("<|im_middle|>");
    if (message.role == "assistant" && options_.generation != Generation::kK2) {
      prompt->Trusted("<think>");
      if (keep_reasoning) prompt->Untrusted(message.reasoning.value_or(""));
      prompt->Trusted("</think>");
    }
    if (message.role == "tool") {
      prompt->Trusted("## Return of ").Untrusted(names->OfResult(message)).Trusted("\n");
    }
    prompt->Untrusted(message.content);
    if (!message.tool_calls.empty()) ToolCalls(message, names, prompt);
    prompt->Trusted("<|im_end|>");
  }

  static void ToolCalls(const ChatMessage& message, CallNames* names, PromptBuilder* prompt) {
    prompt->Trusted("<|tool_calls_section_begin|>");
    for (const ChatToolCall& call : message.tool_calls) {
      prompt->Trusted("<|tool_call_begin|>").Untrusted(names->OfCall(call));
      prompt->Trusted("<|tool_call_argument_begin|>");
      if (call.arguments == nullptr) {
        prompt->Trusted("{}");
      } else if (call.arguments->is_string()) {
        prompt->Untrusted(*call.arguments->AsString());
      } else {
        prompt->Untrusted(PythonJson(*call.arguments));
      }
      prompt->Trusted("<|tool_call_end|>");
    }
    prompt->Trusted("<|tool_calls_section_end|>");
  }

  const KimiOptions options_;
};

}  // namespace

std::unique_ptr<const ChatTemplate> KimiTemplate(const KimiOptions& options) {
  return std::make_unique<Kimi>(options);
}

}  // namespace sluice::text
