#include <utility>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "text/chat/load_template.h"
#include "text/chat/simple_template.h"
#include "text/chat/typescript_tools.h"
#include "text/jinja/template.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

// Markers that only ever end a turn. Others a model's files name as its end tokens.
constexpr absl::string_view kEndMarkers[] = {"<|im_end|>",      "<|eot_id|>",
                                             "<|eom_id|>",      "<end_of_turn>",
                                             "<|end_of_turn|>", "<｜end▁of▁sentence｜>"};

std::vector<std::string> EndsOf(absl::string_view text) {
  std::vector<std::string> ends;
  for (const absl::string_view marker : kEndMarkers) {
    if (absl::StrContains(text, marker)) ends.emplace_back(marker);
  }
  if (FormatOfTemplate(text) == OutputFormat::kGlm) {
    for (const char* marker : {"<|user|>", "<|observation|>"}) ends.emplace_back(marker);
  }
  return ends;
}

class JinjaChat final : public SimpleTemplate {
 public:
  JinjaChat(const TemplateSource& source, std::unique_ptr<const jinja::Template> jinja)
      : SimpleTemplate("jinja", EndsOf(source.text), FormatOfTemplate(source.text)),
        template_(std::move(jinja)),
        knows_tools_(absl::StrContains(source.text, "tools")),
        typescript_tools_(absl::StrContains(source.text, "tools_ts_str")) {
    for (const auto& [name, text] :
         {std::pair("bos_token", source.bos_token), std::pair("eos_token", source.eos_token),
          std::pair("pad_token", source.pad_token)}) {
      if (!text.empty()) constants_.emplace_back(name, text);
    }
  }

  absl::StatusOr<std::vector<Segment>> Render(const ChatRequest& request) const override {
    if (!request.messages.is_array() || request.messages.array().empty()) {
      return absl::InvalidArgumentError("messages must be a list of at least one message");
    }
    const bool has_tools = !request.tools.array().empty();
    if (has_tools && !knows_tools_) {
      return absl::InvalidArgumentError("the chat template of this model knows no tools");
    }
    jinja::Variables variables;
    variables.constants = constants_;
    variables.today = request.today;
    variables.plain_keys = {"role"};
    variables.plain_words = {"system", "user", "assistant", "tool", "developer", "function"};
    const JsonValue null;
    JsonValue::Object& data = variables.data;
    data = request.arguments;
    data.emplace_back("messages", request.messages);
    data.emplace_back("tools", has_tools ? request.tools : null);
    data.emplace_back("documents", null);
    data.emplace_back("add_generation_prompt", JsonValue(request.add_generation_prompt));
    // What the tokenizer of Kimi K2.5 and later does before it runs the template.
    if (typescript_tools_ && has_tools) {
      const JsonValue sorted = SortedByKey(request.tools);
      const auto declarations = TypeScriptTools(sorted);
      if (declarations.ok()) data.emplace_back("tools_ts_str", JsonValue(*declarations));
      data.emplace_back("tools", sorted);
    }
    return template_->Render(variables);
  }

 private:
  const std::unique_ptr<const jinja::Template> template_;
  const bool knows_tools_;
  const bool typescript_tools_;
  std::vector<std::pair<std::string, std::string>> constants_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> JinjaChatTemplate(
    const TemplateSource& source) {
  SLUICE_ASSIGN_OR_RETURN(auto parsed, jinja::Template::Parse(source.text));
  return std::make_unique<JinjaChat>(source, std::move(parsed));
}

}  // namespace sluice::text
