#include "text/chat/recognize.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "text/chat/families.h"

namespace sluice::text {
namespace {

class Text {
 public:
  explicit Text(absl::string_view text) : text_(text) {}
  template <typename... Parts>
  bool HasAll(const Parts&... parts) const {
    return (absl::StrContains(text_, parts) && ...);
  }
  bool Has(absl::string_view part) const { return absl::StrContains(text_, part); }

 private:
  absl::string_view text_;
};

// The system message that a ChatML template writes as a literal, empty if it has none.
std::string DefaultSystemMessage(absl::string_view text) {
  // Inside a string of the template a newline is written as itself or as \n.
  for (const absl::string_view opening : {"<|im_start|>system\n", "<|im_start|>system\\n"}) {
    for (size_t at = text.find(opening); at != absl::string_view::npos;
         at = text.find(opening, at + 1)) {
      const absl::string_view rest = text.substr(at + opening.size());
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

std::unique_ptr<const ChatTemplate> Kimi(const Text& text) {
  if (!text.HasAll("<|im_middle|>", "<|im_system|>", "<|tool_calls_section_begin|>"))
    return nullptr;
  KimiOptions options;
  options.renumber_calls = text.Has("tool_call_counter");
  if (text.Has("tools_ts_str")) {
    options.generation = KimiOptions::Generation::kK25;
  } else if (text.HasAll("suffix_msgs", "reasoning_content")) {
    options.generation = KimiOptions::Generation::kK2Thinking;
    options.split_at_first_answer = !text.Has("break");
  }
  return KimiTemplate(options);
}

std::unique_ptr<const ChatTemplate> Glm(const Text& text) {
  if (!text.HasAll("[gMASK]<sop>", "<|assistant|>", "<arg_key>")) return nullptr;
  GlmOptions options;
  if (text.Has("reasoning_effort")) {
    options.generation = GlmOptions::Generation::k52;
  } else if (!text.Has("/nothink")) {
    options.generation = GlmOptions::Generation::k47;
  }
  return GlmTemplate(options);
}

std::unique_ptr<const ChatTemplate> Llama3(const Text& text, const TemplateSource& source) {
  if (!text.HasAll("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")) return nullptr;
  Llama3Options options;
  options.dated = text.Has("Cutting Knowledge Date");
  // Later ones print today's date, which only their own text says how.
  if (text.Has("strftime_now")) return nullptr;
  if (text.Has("bos_token")) options.bos = source.bos_token;
  if (text.Has("<|begin_of_text|>")) options.bos = "<|begin_of_text|>";
  return Llama3Template(options);
}

std::unique_ptr<const ChatTemplate> ChatMl(const Text& text, absl::string_view source) {
  if (!text.HasAll("<|im_start|>", "<|im_end|>")) return nullptr;
  if (text.HasAll("<think>", "enable_thinking", "last_query_index", "<tool_call>")) {
    return Qwen3Template();
  }
  if (text.Has("<think>") || text.Has("reasoning") || text.Has("tools")) return nullptr;
  std::string system = DefaultSystemMessage(source);
  const absl::string_view name = absl::StrContains(system, "SmolLM") ? "smollm2" : "chatml";
  return ChatMlTemplate(name, std::move(system));
}

}  // namespace

std::unique_ptr<const ChatTemplate> RecognizeFamily(const TemplateSource& source) {
  const Text text(source.text);
  if (auto kimi = Kimi(text)) return kimi;
  if (auto glm = Glm(text)) return glm;
  if (text.HasAll("<｜User｜>", "<｜tool▁calls▁begin｜>", "is_last_user")) {
    return DeepSeekTemplate(source.bos_token);
  }
  if (auto llama = Llama3(text, source)) return llama;
  return ChatMl(text, source.text);
}

}  // namespace sluice::text
