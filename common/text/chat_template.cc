#include "text/chat_template.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr absl::string_view kLlamaDefaultDate = "26 Jul 2024";

class PromptBuilder {
 public:
  template <typename... Parts>
  void Trusted(const Parts&... parts) {
    Add(absl::StrCat(parts...), true);
  }
  void Untrusted(absl::string_view text) { Add(std::string(text), false); }
  std::vector<Segment> Finish() { return std::move(segments_); }

 private:
  void Add(std::string text, bool trusted) {
    if (text.empty()) return;
    if (!segments_.empty() && segments_.back().trusted == trusted) {
      segments_.back().text += text;
    } else {
      segments_.push_back({std::move(text), trusted});
    }
  }
  std::vector<Segment> segments_;
};

// Roles become trusted text, so only known ones may pass.
absl::Status CheckMessages(absl::Span<const ChatMessage> messages) {
  if (messages.empty()) return absl::InvalidArgumentError("messages is empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "].role is '", role.substr(0, 64),
                       "'; the chat template of this model knows system, user and assistant"));
    }
  }
  return absl::OkStatus();
}

// Python's str.strip(), which Jinja's trim is.
absl::string_view Trim(absl::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    if (step.state != Utf8State::kValid || !IsPythonSpace(step.code_point)) break;
    text.remove_prefix(step.length);
  }
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    const Utf8Step step = DecodeUtf8(text.substr(begin));
    if (step.state != Utf8State::kValid || !IsPythonSpace(step.code_point)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

absl::string_view StripNewlines(absl::string_view text, bool left, bool right) {
  while (left && absl::ConsumePrefix(&text, "\n")) {
  }
  while (right && absl::ConsumeSuffix(&text, "\n")) {
  }
  return text;
}

// <|im_start|>role\ncontent<|im_end|>\n, with a system message of its own when the first message is
// none.
class ChatMlTemplate : public ChatTemplate {
 public:
  ChatMlTemplate(absl::string_view name, std::string default_system)
      : name_(name), default_system_(std::move(default_system)) {}

  absl::StatusOr<std::vector<Segment>> Render(absl::Span<const ChatMessage> messages,
                                              const ChatOptions& options) const override {
    SLUICE_RETURN_IF_ERROR(CheckMessages(messages));
    PromptBuilder prompt;
    if (!default_system_.empty() && messages[0].role != "system") {
      prompt.Trusted("<|im_start|>system\n", default_system_, "<|im_end|>\n");
    }
    for (const ChatMessage& message : messages) {
      prompt.Trusted("<|im_start|>", message.role, "\n");
      prompt.Untrusted(message.content);
      prompt.Trusted("<|im_end|>\n");
    }
    if (options.add_generation_prompt) prompt.Trusted("<|im_start|>assistant\n");
    return prompt.Finish();
  }
  absl::string_view name() const override { return name_; }
  absl::Span<const std::string> end_of_turn() const override { return end_of_turn_; }

 private:
  std::string name_;
  std::string default_system_;
  std::vector<std::string> end_of_turn_ = {"<|im_end|>"};
};

// ChatML in which only the assistant turns behind the last question keep their reasoning.
class Qwen3Template : public ChatTemplate {
 public:
  absl::StatusOr<std::vector<Segment>> Render(absl::Span<const ChatMessage> messages,
                                              const ChatOptions& options) const override {
    SLUICE_RETURN_IF_ERROR(CheckMessages(messages));
    size_t last_question = messages.size() - 1;
    for (size_t i = messages.size(); i-- > 0;) {
      if (messages[i].role != "user") continue;
      last_question = i;
      break;
    }
    PromptBuilder prompt;
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      prompt.Trusted("<|im_start|>", message.role, "\n");
      if (message.role == "assistant") {
        const bool last = i + 1 == messages.size();
        Assistant(message, i > last_question, last, &prompt);
      } else {
        prompt.Untrusted(message.content);
      }
      prompt.Trusted("<|im_end|>\n");
    }
    if (options.add_generation_prompt) {
      prompt.Trusted("<|im_start|>assistant\n");
      if (!options.enable_thinking) prompt.Trusted("<think>\n\n</think>\n\n");
    }
    return prompt.Finish();
  }
  absl::string_view name() const override { return "qwen3"; }
  absl::Span<const std::string> end_of_turn() const override { return end_of_turn_; }

 private:
  static void Assistant(const ChatMessage& message, bool behind_question, bool last,
                        PromptBuilder* prompt) {
    constexpr absl::string_view kBegin = "<think>", kEnd = "</think>";
    absl::string_view reasoning = message.reasoning, content = message.content;
    const size_t first = content.find(kEnd);
    if (reasoning.empty() && first != absl::string_view::npos) {
      reasoning = StripNewlines(content.substr(0, first), false, true);
      const size_t begin = reasoning.rfind(kBegin);
      if (begin != absl::string_view::npos) reasoning.remove_prefix(begin + kBegin.size());
      reasoning = StripNewlines(reasoning, true, false);
      content = StripNewlines(content.substr(content.rfind(kEnd) + kEnd.size()), true, false);
    }
    if (behind_question && (last || !reasoning.empty())) {
      prompt->Trusted("<think>\n");
      prompt->Untrusted(StripNewlines(reasoning, true, true));
      prompt->Trusted("\n</think>\n\n");
      content = StripNewlines(content, true, false);
    }
    prompt->Untrusted(content);
  }

  std::vector<std::string> end_of_turn_ = {"<|im_end|>"};
};

// Llama-3, and Llama-3.1 and later, which always have a system message with dates.
class Llama3Template : public ChatTemplate {
 public:
  Llama3Template(bool dated, bool bos) : dated_(dated), bos_(bos) {}

  absl::StatusOr<std::vector<Segment>> Render(absl::Span<const ChatMessage> messages,
                                              const ChatOptions& options) const override {
    SLUICE_RETURN_IF_ERROR(CheckMessages(messages));
    PromptBuilder prompt;
    if (bos_) prompt.Trusted("<|begin_of_text|>");
    if (dated_) {
      prompt.Trusted(Header("system"), "Cutting Knowledge Date: December 2023\nToday Date: ");
      prompt.Untrusted(options.date.has_value() ? absl::string_view(*options.date)
                                                : kLlamaDefaultDate);
      prompt.Trusted("\n\n");
      if (messages[0].role == "system") {
        prompt.Untrusted(Trim(messages[0].content));
        messages.remove_prefix(1);
      }
      prompt.Trusted("<|eot_id|>");
    }
    for (const ChatMessage& message : messages) {
      prompt.Trusted(Header(message.role));
      prompt.Untrusted(Trim(message.content));
      prompt.Trusted("<|eot_id|>");
    }
    if (options.add_generation_prompt) prompt.Trusted(Header("assistant"));
    return prompt.Finish();
  }
  absl::string_view name() const override { return dated_ ? "llama-3.1" : "llama-3"; }
  absl::Span<const std::string> end_of_turn() const override { return end_of_turn_; }

 private:
  static std::string Header(absl::string_view role) {
    return absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n");
  }

  bool dated_;
  bool bos_;
  std::vector<std::string> end_of_turn_ = {"<|eot_id|>", "<|eom_id|>"};
};

class PlainTemplate : public ChatTemplate {
 public:
  absl::StatusOr<std::vector<Segment>> Render(absl::Span<const ChatMessage> messages,
                                              const ChatOptions& options) const override {
    SLUICE_RETURN_IF_ERROR(CheckMessages(messages));
    PromptBuilder prompt;
    for (const ChatMessage& message : messages) {
      prompt.Trusted(message.role, ": ");
      prompt.Untrusted(message.content);
      prompt.Trusted("\n");
    }
    if (options.add_generation_prompt) prompt.Trusted("assistant:");
    return prompt.Finish();
  }
  absl::string_view name() const override { return "plain"; }
  absl::Span<const std::string> end_of_turn() const override { return {}; }
};

// The system message that a ChatML template writes as a literal, empty if it has none.
std::string DefaultSystemMessage(absl::string_view template_text) {
  // Inside a string of the template a newline is written as itself or as \n.
  for (const absl::string_view opening : {"<|im_start|>system\n", "<|im_start|>system\\n"}) {
    for (size_t at = template_text.find(opening); at != absl::string_view::npos;
         at = template_text.find(opening, at + 1)) {
      const absl::string_view rest = template_text.substr(at + opening.size());
      const absl::string_view literal = rest.substr(0, rest.find("<|im_end|>"));
      // A quote or brace means that the string ended before: the message is an expression.
      if (literal.size() == rest.size() || absl::StrContains(literal, "'") ||
          literal.find_first_of("\"{}") != absl::string_view::npos) {
        continue;
      }
      return absl::StrReplaceAll(literal, {{"\\n", "\n"}});
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> RecognizeChatTemplate(
    absl::string_view template_text) {
  const auto has = [&](absl::string_view part) { return absl::StrContains(template_text, part); };
  if (has("<|start_header_id|>") && has("<|end_header_id|>") && has("<|eot_id|>")) {
    return std::make_unique<Llama3Template>(has("Cutting Knowledge Date"),
                                            has("bos_token") || has("<|begin_of_text|>"));
  }
  if (has("<|im_start|>") && has("<|im_end|>")) {
    if (has("<think>") && has("enable_thinking") && has("last_query_index")) {
      return std::make_unique<Qwen3Template>();
    }
    if (!has("<think>") && !has("reasoning")) {
      std::string system = DefaultSystemMessage(template_text);
      const char* name = absl::StrContains(system, "SmolLM") ? "smollm2" : "chatml";
      return std::make_unique<ChatMlTemplate>(name, std::move(system));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the chat template of this model (", template_text.size(),
      " characters) is not a known one; supported are ChatML (SmolLM2, Qwen2), Qwen3, Llama-3 and "
      "Llama-3.1; send a prompt or token ids instead of messages"));
}

std::unique_ptr<const ChatTemplate> PlainChatTemplate() {
  return std::make_unique<PlainTemplate>();
}

std::string PromptText(absl::Span<const Segment> segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

}  // namespace sluice::text
