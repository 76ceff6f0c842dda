#include "text/output/output_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "text/testing/golden.h"

namespace sluice::text {
namespace {

using testing::GoldenTokenizer;

constexpr absl::string_view kTools = R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","required":["city"],
    "properties":{"city":{"type":"string"},"days":{"type":"integer"},"metric":{"type":"boolean"},
                  "tags":{"type":"array"},"note":{"type":["string","null"]},"any":{}}}}},
  {"type":"function","function":{"name":"fs.read-file","parameters":{"type":"object","required":["path"],
    "properties":{"path":{"type":"string"}}}}}])";

std::shared_ptr<const ToolSchemas> Tools() {
  return std::make_shared<ToolSchemas>(*formats::ParseJson(kTools, "tools"));
}

const Tokenizer& TokenizerOf(OutputFormat format) {
  static const auto* const kKimi = GoldenTokenizer("kimi").release();
  static const auto* const kGlm = GoldenTokenizer("glm").release();
  return format == OutputFormat::kKimi ? *kKimi : *kGlm;
}

// Everything a reader says about an output, as text: "r{...}" reasoning, "c{...}" content, calls.
std::string Describe(const OutputDelta& total, const OutputReader& reader) {
  std::string text;
  if (!total.reasoning.empty()) absl::StrAppend(&text, "r{", total.reasoning, "}");
  if (!total.content.empty()) absl::StrAppend(&text, "c{", total.content, "}");
  for (const ToolCallDelta& call : total.tool_calls) {
    absl::StrAppend(&text, "[", call.index, " ", call.name, " ", call.arguments, "]");
  }
  if (reader.called_tools()) text += "!";
  return text;
}

void Merge(const OutputDelta& delta, OutputDelta* total) {
  total->content += delta.content;
  total->reasoning += delta.reasoning;
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.name.empty() || !call.id.empty()) {
      EXPECT_EQ(call.index, total->tool_calls.size());
      total->tool_calls.push_back(call);
    } else {
      ASSERT_LT(call.index, total->tool_calls.size());
      total->tool_calls[call.index].arguments += call.arguments;
    }
  }
}

struct Script {
  OutputOptions options;
  std::vector<std::string> stops;
  bool ended = true;

  // The output of `ids`, taken out of the reader after every `group` tokens.
  std::string Read(absl::Span<const TokenId> ids, size_t group = 1) const {
    OutputReader reader(TokenizerOf(options.format), *StopMatcher::Create(stops), options);
    OutputDelta total, delta;
    for (size_t i = 0; i < ids.size(); ++i) {
      reader.Append(ids[i], &delta);
      if ((i + 1) % group != 0) continue;
      Merge(delta, &total);
      delta = {};
    }
    reader.Finish(ended, &delta);
    Merge(delta, &total);
    return Describe(total, reader);
  }
  std::string Read(absl::string_view text) const {
    const auto ids = TokenizerOf(options.format).Encode(text, /*trusted=*/true);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return Read(*ids);
  }
};

Script Kimi(bool inside_thinking = false) {
  Script run;
  run.options.format = OutputFormat::kKimi;
  run.options.inside_thinking = inside_thinking;
  run.options.calls = {Tools(), 0, "seed"};
  return run;
}

Script Glm(bool inside_thinking = false) {
  Script run = Kimi(inside_thinking);
  run.options.format = OutputFormat::kGlm;
  return run;
}

// Short forms of Kimi's markers.
std::string K(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"<S>", "<|tool_calls_section_begin|>"},
                                    {"</S>", "<|tool_calls_section_end|>"},
                                    {"<C>", "<|tool_call_begin|>"},
                                    {"<A>", "<|tool_call_argument_begin|>"},
                                    {"</C>", "<|tool_call_end|>"}});
}

// Short forms of GLM's.
std::string G(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"<C>", "<tool_call>"},
                                    {"</C>", "</tool_call>"},
                                    {"<K>", "<arg_key>"},
                                    {"</K>", "</arg_key>"},
                                    {"<V>", "<arg_value>"},
                                    {"</V>", "</arg_value>"}});
}

TEST(OutputReader, PlainTextIsContent) {
  EXPECT_EQ(Kimi().Read("Hello there.\n"), "c{Hello there.\n}");
  EXPECT_EQ(Glm().Read("\nHi\n\n"), "c{Hi\n\n}");
  Script plain;
  EXPECT_EQ(plain.Read("\n<think>x</think> \n"), "c{\n<think>x</think> \n}");
}

TEST(OutputReader, SplitsReasoning) {
  EXPECT_EQ(Kimi(true).Read("hm </think>\n\nYes."), "r{hm}c{Yes.}");
  EXPECT_EQ(Kimi().Read("<think> hm\n</think>Yes."), "r{hm}c{Yes.}");
  EXPECT_EQ(Glm().Read("\n<think>\nhm </think>\nYes."), "r{hm}c{Yes.}");
  EXPECT_EQ(Glm(true).Read("<think>hm</think>Yes."), "r{hm}c{Yes.}");  // an echo of the prompt
  EXPECT_EQ(Glm(true).Read("hm"), "r{hm}");
  EXPECT_EQ(Glm().Read("Yes.</think> And"), "c{Yes. And}");  // a stray end
  Script raw = Glm();
  raw.options.split_reasoning = false;
  EXPECT_EQ(raw.Read("<think>hm</think>Yes."), "c{<think>hm</think>Yes.}");
}

TEST(OutputReader, KimiCalls) {
  EXPECT_EQ(
      Kimi().Read(K("Let me see. <S><C>functions.get_weather:0<A>{\"city\": \"Paris\"}</C>"
                    "<C>functions.fs.read-file:1<A> {\"path\":\"a\"}\n</C></S>")),
      "c{Let me see.}[0 get_weather {\"city\": \"Paris\"}][1 fs.read-file {\"path\":\"a\"}]!");
  EXPECT_EQ(Kimi(true).Read(K("hm</think><S><C>functions.get_weather:4<A>{}</C></S>")),
            "r{hm}[0 get_weather {}]!");
}

TEST(OutputReader, KimiFaultsSeenInTheWild) {
  const std::pair<const char*, const char*> cases[] = {
      // The section opens inside the reasoning.
      {"hm <S><C>functions.get_weather:0<A>{}</C></S>", "r{hm}[0 get_weather {}]!"},
      // A bare counter: the arguments tell the tool.
      {"x</think><S><C>3<A>{\"path\": \"a\"}</C></S>", "r{x}[0 fs.read-file {\"path\": \"a\"}]!"},
      {"x</think><S><C>functions.3<A>{\"city\":\"a\",\"days\":1}</C></S>",
       "r{x}[0 get_weather {\"city\":\"a\",\"days\":1}]!"},
      {"x</think><S><C>3<A>{\"unknown\": 1}</C></S>", "r{x}[0 3 {\"unknown\": 1}]!"},
      // The prefix or the number is missing.
      {"x</think><S><C>get_weather:0<A>{}</C></S>", "r{x}[0 get_weather {}]!"},
      {"x</think><S><C>functions.get_weather<A>{}</C></S>", "r{x}[0 get_weather {}]!"},
      // Dots and dashes belong to the name.
      {"x</think><S><C>fs.read-file:0<A>{}</C></S>", "r{x}[0 fs.read-file {}]!"},
      // A second beginning before the arguments.
      {"x</think><S><C>functions.no<C>functions.get_weather:0<A>{}</C></S>",
       "r{x}[0 get_weather {}]!"},
      // Missing: beginning of the section, beginning of a call, separator, end of a call, all ends.
      {"x</think><C>functions.get_weather:0<A>{}</C>", "r{x}[0 get_weather {}]!"},
      {"x</think><S>functions.get_weather:0<A>{}</C></S>", "r{x}[0 get_weather {}]!"},
      {"x</think><S><C>functions.get_weather:0{\"city\":\"a\"}</C></S>",
       "r{x}[0 get_weather {\"city\":\"a\"}]!"},
      {"x</think><S><C>functions.get_weather:0<A>{}<C>functions.fs.read-file:1<A>{}</S>",
       "r{x}[0 get_weather {}][1 fs.read-file {}]!"},
      {"x</think><S><C>functions.get_weather:0<A>{\"city\":\"a\"}",
       "r{x}[0 get_weather {\"city\":\"a\"}]!"},
      // No arguments at all.
      {"x</think><S><C>functions.get_weather:0<A></C></S>", "r{x}[0 get_weather {}]!"},
      // A section without calls, text around calls, stray ends.
      {"x</think>a<S></S>\nb", "r{x}c{a\nb}"},
      {"x</think>a<S><C>get_weather:0<A>{}</C></S>\n b</S></C>", "r{x}c{a\n b}[0 get_weather {}]!"},
      {"x</think><S>so: <C>get_weather:0<A>{}</C>done</S>", "r{x}c{done}[0 get_weather {}]!"},
      // Markers of the reasoning inside a string are data.
      {"x</think><S><C>get_weather:0<A>{\"city\":\"<think>\"}</C></S>",
       "r{x}[0 get_weather {\"city\":\"<think>\"}]!"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(Kimi(true).Read(K(text)), expected) << text;
}

TEST(OutputReader, KimiIdsCountOnFromTheConversation) {
  Script run = Kimi();
  run.options.calls.calls_before = 2;
  OutputReader reader(TokenizerOf(OutputFormat::kKimi), *StopMatcher::Create({}), run.options);
  OutputDelta out;
  const auto ids =
      TokenizerOf(OutputFormat::kKimi)
          .Encode(K("<S><C>functions.get_weather:9<A>{}</C><C>f:9<A>{}</C></S>"), true);
  for (const TokenId id : *ids) reader.Append(id, &out);
  ASSERT_EQ(out.tool_calls.size(), 2u);
  EXPECT_EQ(out.tool_calls[0].id, "functions.get_weather:2");
  EXPECT_EQ(out.tool_calls[1].id, "functions.f:3");
}

TEST(OutputReader, GlmCallsBecomeJson) {
  EXPECT_EQ(Glm().Read(G(
                "Sure.\n<C>get_weather\n<K>city</K>\n<V>New \"York\"\n</V>\n<K>days</K>\n<V>3</V>\n"
                "</C>\n<C>fs.read-file<K>path</K><V>/a</V></C>")),
            "c{Sure.}[0 get_weather {\"city\": \"New \\\"York\\\"\\n\", \"days\": 3}]"
            "[1 fs.read-file {\"path\": \"/a\"}]!");
  EXPECT_EQ(Glm(true).Read(G("hm</think><C>get_weather</C>")), "r{hm}[0 get_weather {}]!");
}

TEST(OutputReader, GlmValuesFollowTheSchema) {
  const std::pair<const char*, const char*> cases[] = {
      {"<K>city</K><V>5</V>", "{\"city\": \"5\"}"},  // a string, whatever it looks like
      {"<K>city</K><V></V>", "{\"city\": \"\"}"},
      {"<K>days</K><V> 5 </V>", "{\"days\": 5}"},
      {"<K>days</K><V>five</V>", "{\"days\": \"five\"}"},  // nothing else is left
      {"<K>metric</K><V>True</V>", "{\"metric\": true}"},
      {"<K>tags</K><V>[\"a\", 1]</V>", "{\"tags\": [\"a\", 1]}"},
      {"<K>note</K><V>null</V>", "{\"note\": null}"},
      {"<K>note</K><V>12</V>", "{\"note\": \"12\"}"},  // no number may stand here
      {"<K>any</K><V>{\"x\": 1}</V>", "{\"any\": {\"x\": 1}}"},
      {"<K>any</K><V>True</V>", "{\"any\": \"True\"}"},
      {"<K>other</K><V>1.5</V>", "{\"other\": 1.5}"},
      {"<K>other</K><V>one</V>", "{\"other\": \"one\"}"}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(Glm().Read(G(absl::StrCat("<C>get_weather", text, "</C>"))),
              absl::StrCat("[0 get_weather ", expected, "]!"));
  }
}

TEST(OutputReader, GlmFaults) {
  const std::pair<const char*, const char*> cases[] = {
      {"hm <C>get_weather<K>city</K><V>a</V></C>", "r{hm}[0 get_weather {\"city\": \"a\"}]!"},
      {"x</think><C>get_weather<K>city</K><V>a</C>", "r{x}[0 get_weather {\"city\": \"a\"}]!"},
      {"x</think><C>get_weather<K>city</K><V>a<K>days</K><V>1</V></C>",
       "r{x}[0 get_weather {\"city\": \"a\", \"days\": 1}]!"},
      {"x</think><C>get_weather<K>city<V>a</V></C>", "r{x}[0 get_weather {\"city\": \"a\"}]!"},
      {"x</think><C>get_weather<K>city</K>a</V></C>", "r{x}[0 get_weather {\"city\": \"a\"}]!"},
      {"x</think><C>get_weather<K>city</K><V>a</V><C>fs.read-file</C>",
       "r{x}[0 get_weather {\"city\": \"a\"}][1 fs.read-file {}]!"},
      {"x</think><C>get_weather<K>city</K><V>a", "r{x}[0 get_weather {\"city\": \"a\"}]!"},
      {"x</think><C>get_weather\n{\"city\": \"a\"}\n</C>",
       "r{x}[0 get_weather {\"city\": \"a\"}]!"},
      {"x</think><C></C>b", "r{x}c{b}"},
      {"x</think>a</C></V>b", "r{x}c{ab}"},
      {"x</think><C>get_weather<K>city</K><V><think></V></C>",
       "r{x}[0 get_weather {\"city\": \"<think>\"}]!"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(Glm(true).Read(G(text)), expected) << text;
}

TEST(OutputReader, HermesCallsAreReadWhole) {
  Script run = Glm(true);
  run.options.format = OutputFormat::kHermes;
  EXPECT_EQ(run.Read("x</think>\n\nOk.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
                     "{\"city\":\"a\"}}\n"
                     "</tool_call>\n<tool_call>{\"name\":\"f\"}</tool_call>"),
            "r{x}c{Ok.}[0 get_weather {\"city\": \"a\"}][1 f {}]!");
  EXPECT_EQ(run.Read("x</think><tool_call>oops</tool_call>"), "r{x}c{oops}");
}

TEST(OutputReader, WithoutToolsCallsStayText) {
  Script run = Glm();
  run.options.calls.tools = nullptr;
  EXPECT_EQ(run.Read(G("<think>x</think><C>f</C>")), "r{x}c{<tool_call>f</tool_call>}");
}

TEST(OutputReader, WhatIsCutOffStaysIncomplete) {
  Script run = Kimi(true);
  run.ended = false;
  EXPECT_EQ(run.Read("hm \n"), "r{hm \n}");
  EXPECT_EQ(run.Read(K("x</think><S><C>functions.get_weather:0<A>{\"ci")),
            "r{x}[0 get_weather {\"ci]");
  EXPECT_EQ(run.Read(K("x</think><S><C>functions.get_w")), "r{x}");
  EXPECT_EQ(run.Read(K("x</think><S><C>get_weather:0<A>{}</C>")), "r{x}[0 get_weather {}]!");
  run = Glm(true);
  run.ended = false;
  EXPECT_EQ(run.Read(G("x</think><C>get_weather<K>city</K><V>Par")),
            "r{x}[0 get_weather {\"city\": \"Par]");
  EXPECT_EQ(run.Read(G("x</think><C>get_w")), "r{x}");
}

TEST(OutputReader, StopStringsAreFoundInWhatTheModelWrote) {
  Script run = Glm(true);
  run.stops = {"END", "ris\"", "k></tool"};
  EXPECT_EQ(run.Read("hm END more"), "r{hm }");
  EXPECT_EQ(run.Read("hm</think>Yes END"), "r{hm}c{Yes }");
  EXPECT_EQ(run.Read(G("hm</think><C>get_weather<K>city</K><V>\"Paris\"</V></C>")),
            "r{hm}[0 get_weather {\"city\": \"\\\"Pa]");
  run.stops = {"</think>"};
  EXPECT_EQ(run.Read("hm</think>Yes"), "r{hm}");
  run.stops = {"k>Y"};  // begins inside a marker
  EXPECT_EQ(run.Read("hm</think>Yes"), "r{hm</thin}");
  EXPECT_EQ(run.Read("hm</think>No"), "r{hm}c{No}");
}

TEST(OutputReader, OnlyTheTokenIsAMarker) {
  const Tokenizer& glm = TokenizerOf(OutputFormat::kGlm);
  const auto typed = glm.Encode("a</think>b", /*trusted=*/false);
  EXPECT_EQ(Glm(true).Read(*typed), "r{a</think>b}");
  // Kimi's test vocabulary has no such token: there the characters are the marker.
  const auto text = TokenizerOf(OutputFormat::kKimi).Encode("a</think>b", false);
  EXPECT_EQ(Kimi(true).Read(*text), "r{a}c{b}");
}

// The same text with other tokens: every character its own.
std::vector<TokenId> Characters(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) {
    const auto one = tokenizer.Encode(absl::string_view(&c, 1));
    EXPECT_TRUE(one.ok());
    ids.insert(ids.end(), one->begin(), one->end());
  }
  return ids;
}

// Random outputs, right and wrong: the result must not depend on how text was cut into tokens, nor
// on how many tokens came at once.
void CheckCuts(const Script& base, const std::vector<std::string>& markers) {
  const std::vector<std::string> texts = {"a",
                                          " ",
                                          "\n",
                                          "{\"city\": \"x\"}",
                                          "functions.get_weather:0",
                                          "city",
                                          "<",
                                          "</th",
                                          "<tool",
                                          "3",
                                          "{}",
                                          "END",
                                          "\"",
                                          "EN"};
  const Tokenizer& tokenizer = TokenizerOf(base.options.format);
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    Script run = base;
    run.options.inside_thinking = random() % 2 == 0;
    run.ended = random() % 2 == 0;
    if (random() % 2 == 0) run.stops = {"END", "y>{"};
    std::vector<TokenId> whole, cut;
    std::string script;
    for (int i = 0; i < 16; ++i) {
      const bool marker = random() % 2 == 0;
      const auto& choices = marker ? markers : texts;
      const std::string& piece = choices[random() % choices.size()];
      script += piece;
      const auto ids = tokenizer.Encode(piece, /*trusted=*/marker);
      const bool is_token = marker && ids->size() == 1;
      whole.insert(whole.end(), ids->begin(), ids->end());
      const auto characters = is_token ? *ids : Characters(tokenizer, piece);
      cut.insert(cut.end(), characters.begin(), characters.end());
    }
    const std::string expected = run.Read(whole);
    for (const size_t group : {size_t{2}, size_t{3}, size_t{5}, whole.size() + 1}) {
      EXPECT_EQ(run.Read(whole, group), expected) << script << " by " << group;
    }
    EXPECT_EQ(run.Read(cut), expected) << script;
    EXPECT_EQ(run.Read(cut, 7), expected) << script;
  }
}

TEST(OutputReader, CutsDoNotMatter) {
  CheckCuts(Kimi(), {K("<S>"), K("</S>"), K("<C>"), K("<A>"), K("</C>"), "<think>", "</think>"});
  const std::vector<std::string> glm = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                                        "<arg_value>", "</arg_value>", "<think>",   "</think>"};
  CheckCuts(Glm(), glm);
  Script hermes = Glm();
  hermes.options.format = OutputFormat::kHermes;
  CheckCuts(hermes, glm);
}

// Every way to cut one output into two, four, ... pieces of text.
TEST(OutputReader, EverySplitGivesTheSame) {
  const std::string text =
      K("hm </think>\nOk <S><C>functions.get_weather:0<A> {\"city\": \"a b\"} </C></S> ");
  const Tokenizer& tokenizer = TokenizerOf(OutputFormat::kKimi);
  const auto ids = tokenizer.Encode(text, true);
  const std::string expected = "r{hm}c{Ok}[0 get_weather {\"city\": \"a b\"}]!";
  for (size_t mask = 0; mask < (size_t{1} << 10); ++mask) {
    OutputReader reader(tokenizer, *StopMatcher::Create({}), Kimi(true).options);
    OutputDelta total, delta;
    for (size_t i = 0; i < ids->size(); ++i) {
      reader.Append((*ids)[i], &delta);
      if ((mask >> (i % 10) & 1) == 0) continue;
      Merge(delta, &total);
      delta = {};
    }
    reader.Finish(true, &delta);
    Merge(delta, &total);
    EXPECT_EQ(Describe(total, reader), expected) << mask;
  }
}

}  // namespace
}  // namespace sluice::text
