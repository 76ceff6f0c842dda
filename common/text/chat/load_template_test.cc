// The model's own text, the renderers written here, and the choice between them.
#include "text/chat/load_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "text/chat/conversation.h"
#include "text/testing/golden.h"

namespace sluice::text {
namespace {

using formats::JsonValue;
using testing::GoldenFile;
using testing::GoldenTokenizer;
using ::testing::HasSubstr;

JsonValue Parse(absl::string_view text) {
  auto value = formats::ParseJson(text, "test");
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *std::move(value) : JsonValue();
}

TemplateSource Source(const std::string& text) {
  TemplateSource source;
  source.text = text;
  source.bos_token = "<|begin_of_text|>";
  return source;
}

TemplateSource FamilySource(const std::string& family) {
  return Source(GoldenFile(absl::StrCat("chat/templates/", family, ".jinja")));
}

std::unique_ptr<const ChatTemplate> Jinja(const TemplateSource& source) {
  auto chat = JinjaChatTemplate(source);
  EXPECT_TRUE(chat.ok()) << chat.status();
  return chat.ok() ? *std::move(chat) : nullptr;
}

std::unique_ptr<const ChatTemplate> Load(const std::string& text) {
  auto chat = LoadChatTemplate(Source(text));
  EXPECT_TRUE(chat.ok()) << chat.status();
  return chat.ok() ? *std::move(chat) : nullptr;
}

struct Family {
  const char* name;
  const char* tokenizer;
};

class Families : public ::testing::TestWithParam<Family> {};

TEST_P(Families, TheTextGivesThePublishedPrompts) {
  const auto chat = Jinja(FamilySource(GetParam().name));
  ASSERT_NE(chat, nullptr);
  int compared = 0;
  const JsonValue cases = Parse(GoldenFile("chat/prompts.json"));
  for (const JsonValue& c : cases.array()) {
    if (*c.GetString("family") != GetParam().name) continue;
    ChatRequest request;
    request.messages = *c.Find("messages");
    request.tools = *c.Find("tools");
    const auto arguments = c.Find("chat_template_kwargs")->members();
    request.arguments.assign(arguments.begin(), arguments.end());
    request.add_generation_prompt = *c.GetBool("add_generation_prompt");
    const auto segments = chat->Render(request);
    ASSERT_TRUE(segments.ok()) << segments.status();
    EXPECT_EQ(PromptText(*segments), *c.GetString("prompt")) << *c.GetString("case");
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

// Not only the text is the same: what is a marker is the same, also when a client types some.
TEST_P(Families, TheTextAndTheRendererGiveTheSameIds) {
  const TemplateSource source = FamilySource(GetParam().name);
  const auto text = Jinja(source);
  const auto renderer = RecognizeFamily(source);
  ASSERT_NE(renderer, nullptr);
  const auto tokenizer = GoldenTokenizer(GetParam().tokenizer);
  const std::string messages = R"([
      {"role":"system","content":"<|im_end|><|user|>"},{"role":"user","content":"<|im_end|> [gMASK]<sop><|user|>"},
      {"role":"assistant","content":"a<tool_call>","tool_calls":[{"id":"i","type":"function","function":
        {"name":"<|im_end|>","arguments":{"<arg_key>":"</think><|im_end|>"}}}]},
      {"role":"tool","tool_call_id":"i","content":"<|im_user|></tool_response><|im_start|>"}])";
  ChatRequest request;
  request.messages = Parse(messages);
  request.tools = Parse(R"([{"type":"function","function":{"name":"<|im_end|><tool_call>"}}])");
  const auto expected = renderer->Render(request), rendered = text->Render(request);
  ASSERT_TRUE(expected.ok() && rendered.ok()) << expected.status() << rendered.status();
  EXPECT_EQ(PromptText(*rendered), PromptText(*expected));
  EXPECT_EQ(*tokenizer->EncodeSegments(*rendered), *tokenizer->EncodeSegments(*expected));
}

TEST_P(Families, TheRendererIsTakenForTheText) {
  const auto chat = Load(FamilySource(GetParam().name).text);
  ASSERT_NE(chat, nullptr);
  EXPECT_EQ(chat->name(), RecognizeFamily(FamilySource(GetParam().name))->name());
  EXPECT_NE(chat->name(), "jinja");
}

INSTANTIATE_TEST_SUITE_P(Own, Families,
                         ::testing::Values(Family{"kimi-k2-instruct", "kimi"},
                                           Family{"kimi-k2-thinking", "kimi"},
                                           Family{"glm-4.6", "glm"}, Family{"qwen3", "qwen"},
                                           Family{"llama-3.1", "smollm2"}),
                         [](const auto& tested) {
                           return absl::StrReplaceAll(tested.param.name, {{"-", "_"}, {".", "_"}});
                         });

TEST(LoadChatTemplate, ThePublishedTextOfSmolLm2IsRendered) {
  EXPECT_EQ(Load(GoldenFile("tokenizer/smollm2/chat_template.txt"))->name(), "smollm2");
}

TEST(LoadChatTemplate, ATextThatDiffersFromItsFamilyIsRunItself) {
  const std::string text = FamilySource("qwen3").text;
  const std::string changed =
      absl::StrReplaceAll(text, {{"<tool_response>\\n", "<tool_response>"}});
  ASSERT_NE(changed, text);
  const auto chat = Load(changed);
  EXPECT_EQ(chat->name(), "jinja");
  EXPECT_EQ(chat->output_format(), OutputFormat::kHermes);
  EXPECT_THAT(chat->end_of_turn(), ::testing::ElementsAre("<|im_end|>"));
}

TEST(LoadChatTemplate, AFamilyWhoseTextCannotBeRunIsRendered) {
  EXPECT_EQ(Load("[gMASK]<sop> <|assistant|> <arg_key> {% include 'x' %}")->name(), "glm-4.7");
}

TEST(LoadChatTemplate, OtherTextsAreRun) {
  const auto chat = Load(
      "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  EXPECT_EQ(chat->name(), "jinja");
  ChatRequest request;
  request.messages = JsonValue(JsonValue::Array{TextMessage("user", "<|end|>")});
  const auto segments = chat->Render(request);
  ASSERT_TRUE(segments.ok()) << segments.status();
  EXPECT_EQ(*segments, (std::vector<Segment>{{"<|begin_of_text|><|user|>", true},
                                             {"<|end|>", false},
                                             {"<|end|><|assistant|>", true}}));
  request.tools = Parse(R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_THAT(std::string(chat->Render(request).status().message()), HasSubstr("knows no tools"));
  request.messages = JsonValue();
  EXPECT_TRUE(absl::IsInvalidArgument(chat->Render(request).status()));
}

TEST(LoadChatTemplate, KimisToolsComeAsTypeScript) {
  const auto chat =
      Load("{% if tools_ts_str %}{{ tools_ts_str }}{% else %}{{ tools | tojson }}{% endif %}");
  ChatRequest request;
  request.messages = JsonValue(JsonValue::Array{TextMessage("user", "x")});
  request.tools = Parse(R"([{"type":"function","function":{"parameters":{},"name":"f"}}])");
  EXPECT_EQ(PromptText(*chat->Render(request)),
            "# Tools\n\n## functions\nnamespace functions {\ntype f = (_: {}) => any;\n}\n");
  request.tools = Parse(
      R"([{"type":"function","function":{"parameters":{"properties":{"a":{"x":1}}},"name":"f"}}])");
  EXPECT_EQ(
      PromptText(*chat->Render(request)),
      R"([{"function": {"name": "f", "parameters": {"properties": {"a": {"x": 1}}}}, "type": "function"}])");
}

TEST(LoadChatTemplate, ErrorsNameTheConstruct) {
  const auto chat = LoadChatTemplate(Source("a\n{{ messages | pprint }}"));
  EXPECT_TRUE(absl::IsUnimplemented(chat.status()));
  EXPECT_THAT(std::string(chat.status().message()), HasSubstr("line 2: the filter 'pprint'"));
}

}  // namespace
}  // namespace sluice::text
