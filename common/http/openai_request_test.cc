#include "http/openai_request.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rpc/error.h"

namespace sluice::http {
namespace {

constexpr absl::string_view kHello = R"("messages":[{"role":"user","content":"hello"}])";

std::string Chat(absl::string_view members) {
  return absl::StrCat("{", kHello, members.empty() ? "" : ",", members, "}");
}
std::string Completion(absl::string_view members) {
  return absl::StrCat(R"({"prompt":"hello")", members.empty() ? "" : ",", members, "}");
}

v1::GenerateRequest MustParse(Endpoint endpoint, const std::string& body) {
  const auto request = ParseGeneration(endpoint, body);
  EXPECT_TRUE(request.ok()) << body << "\n" << request.status();
  return request.ok() && !request->generations.empty() ? request->generations[0]
                                                       : v1::GenerateRequest();
}

TEST(OpenAiRequestTest, ReadsEveryParameter) {
  const v1::GenerateRequest request = MustParse(Endpoint::kChat, Chat(R"(
      "model":"m","temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"n":2,"stop":["a","b"],"seed":-1,
      "logprobs":true,"top_logprobs":3,"logit_bias":{"5":-100,"7":1.5},"presence_penalty":0.25,"frequency_penalty":-0.5,
      "repetition_penalty":1.1,"max_tokens":9,"max_completion_tokens":10,"min_tokens":2,"ignore_eos":true,
      "stop_token_ids":[1,2],"user":"u","cache_salt":"s","priority":-3,"skip_special_tokens":false,
      "include_stop_str_in_output":true,"add_generation_prompt":false)"));
  EXPECT_EQ(request.model(), "m");
  const v1::SamplingOptions& sampling = request.sampling();
  EXPECT_FLOAT_EQ(sampling.temperature(), 0.5f);
  EXPECT_FLOAT_EQ(sampling.top_p(), 0.9f);
  EXPECT_EQ(sampling.top_k(), 40u);
  EXPECT_FLOAT_EQ(sampling.min_p(), 0.1f);
  EXPECT_FLOAT_EQ(sampling.presence_penalty(), 0.25f);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty(), -0.5f);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty(), 1.1f);
  EXPECT_EQ(sampling.seed(), ~uint64_t{0});
  EXPECT_FLOAT_EQ(sampling.logit_bias().at(5), -100);
  EXPECT_FLOAT_EQ(sampling.logit_bias().at(7), 1.5f);
  EXPECT_EQ(request.choices(), 2u);
  ASSERT_EQ(request.stop_size(), 2);
  EXPECT_EQ(request.stop(1), "b");
  EXPECT_EQ(request.logprobs(), 3u);
  EXPECT_EQ(request.max_tokens(), 10u);  // the newer name wins
  EXPECT_EQ(request.min_tokens(), 2u);
  EXPECT_TRUE(request.ignore_eos());
  ASSERT_EQ(request.stop_token_ids_size(), 2);
  EXPECT_EQ(request.stop_token_ids(1), 2u);
  EXPECT_EQ(request.session_affinity(), "u");
  EXPECT_EQ(request.cache_salt(), "s");
  EXPECT_EQ(request.priority(), -3);
  EXPECT_TRUE(request.keep_special_tokens());
  EXPECT_TRUE(request.include_stop());
  ASSERT_EQ(request.messages().messages_size(), 1);
  EXPECT_EQ(request.messages().messages(0).role(), "user");
  EXPECT_EQ(request.messages().messages(0).content(), "hello");
  EXPECT_FALSE(request.messages().add_generation_prompt());
}

TEST(OpenAiRequestTest, WhatIsLeftOutOrNullStaysAbsent) {
  for (const std::string& body :
       {Chat(""), Chat(R"("temperature":null,"max_tokens":null,"stop":null,"logprobs":null,"n":null,
       "seed":null,"tools":null,"response_format":null,"logit_bias":null,"stream":null,"stream_options":null)")}) {
    const v1::GenerateRequest request = MustParse(Endpoint::kChat, body);
    EXPECT_FALSE(request.sampling().has_temperature());
    EXPECT_FALSE(request.sampling().has_seed());
    EXPECT_FALSE(request.has_max_tokens());
    EXPECT_FALSE(request.has_logprobs());
    EXPECT_EQ(request.choices(), 1u);
  }
  EXPECT_EQ(MustParse(Endpoint::kCompletions, Completion("")).max_tokens(), 16u);
  EXPECT_EQ(MustParse(Endpoint::kChat, Chat(R"("top_k":-1)")).sampling().top_k(), 0u);
  EXPECT_EQ(MustParse(Endpoint::kChat, Chat(R"("logprobs":true)")).logprobs(), 0u);
  EXPECT_EQ(MustParse(Endpoint::kChat, Chat(R"("stop":"x")")).stop(0), "x");
  EXPECT_EQ(MustParse(Endpoint::kCompletions, Completion(R"("logprobs":5)")).logprobs(), 5u);
}

TEST(OpenAiRequestTest, ReadsMessages) {
  const v1::GenerateRequest request = MustParse(Endpoint::kChat, R"({"messages":[
      {"role":"developer","content":"be brief","name":"x"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":"","refusal":null,"tool_calls":[]}]})");
  ASSERT_EQ(request.messages().messages_size(), 3);
  EXPECT_EQ(request.messages().messages(0).role(), "system");
  EXPECT_EQ(request.messages().messages(1).content(), "ab");
  EXPECT_EQ(request.messages().messages(2).content(), "");
}

TEST(OpenAiRequestTest, ReadsToolsAndWhatCameOfThem) {
  const v1::GenerateRequest request = MustParse(Endpoint::kChat, R"({"messages":[
      {"role":"user","content":"q","name":"ann"},
      {"role":"assistant","content":null,"reasoning":"hm","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"k\": 1}"}},
        {"function":{"name":"g","arguments":{"s":"v"}}},{"function":{"name":"h"}}]},
      {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"1"}]}],
      "tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":[2.5]}}}],
      "tool_choice":"auto","parallel_tool_calls":true,"reasoning_effort":"high",
      "chat_template_kwargs":{"enable_thinking":false},"separate_reasoning":false})");
  const v1::Messages& messages = request.messages();
  ASSERT_EQ(messages.messages_size(), 3);
  EXPECT_EQ(messages.messages(0).name(), "ann");
  const v1::Message& assistant = messages.messages(1);
  EXPECT_EQ(assistant.reasoning_content(), "hm");
  EXPECT_FALSE(messages.messages(0).has_reasoning_content());
  ASSERT_EQ(assistant.tool_calls_size(), 3);
  EXPECT_EQ(assistant.tool_calls(0).id(), "c1");
  EXPECT_EQ(assistant.tool_calls(0).arguments(), "{\"k\": 1}");
  EXPECT_EQ(assistant.tool_calls(1).arguments(), R"({"s":"v"})");
  EXPECT_EQ(assistant.tool_calls(2).arguments(), "{}");
  EXPECT_EQ(messages.messages(2).role(), "tool");
  EXPECT_EQ(messages.messages(2).tool_call_id(), "c1");
  EXPECT_EQ(messages.messages(2).content(), "1");
  ASSERT_EQ(messages.tools_size(), 1);
  EXPECT_EQ(messages.tools(0),
            R"({"type":"function","function":{"name":"f","parameters":{"z":1,"a":[2.5]}}})");
  EXPECT_EQ(messages.tool_choice(), "auto");
  EXPECT_EQ(messages.template_args(), R"({"enable_thinking":false,"reasoning_effort":"high"})");
  EXPECT_TRUE(messages.reasoning_in_text());
  // Refused where the model is known.
  EXPECT_EQ(
      MustParse(Endpoint::kChat, Chat(R"("tool_choice":"required")")).messages().tool_choice(),
      "required");
  EXPECT_EQ(MustParse(Endpoint::kChat, Chat(R"("tool_choice":{"type":"function"})"))
                .messages()
                .tool_choice(),
            "function");
}

TEST(OpenAiRequestTest, ReadsEveryKindOfPrompt) {
  auto parsed = ParseGeneration(Endpoint::kCompletions, R"({"prompt":[1,2,3]})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->generations[0].token_ids().ids_size(), 3);
  parsed = ParseGeneration(Endpoint::kCompletions, R"({"prompt":["a","b"],"n":2})");
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed->generations.size(), 2u);
  EXPECT_EQ(parsed->choices, 2u);
  EXPECT_EQ(parsed->generations[1].text(), "b");
  parsed = ParseGeneration(Endpoint::kCompletions, R"({"prompt":[[1],[2,3]]})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->generations[1].token_ids().ids(1), 3u);
}

TEST(OpenAiRequestTest, ReadsStreamOptions) {
  auto parsed = ParseGeneration(Endpoint::kChat, Chat(R"("stream":true)"));
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->stream);
  EXPECT_FALSE(parsed->include_usage);
  parsed = ParseGeneration(Endpoint::kChat,
                           Chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->include_usage);
  EXPECT_FALSE(parsed->continuous_usage);
  parsed = ParseGeneration(
      Endpoint::kChat,
      Chat(
          R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"));
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->continuous_usage);
}

TEST(OpenAiRequestTest, UnknownMembersAreIgnoredAndNamed) {
  const auto parsed =
      ParseGeneration(Endpoint::kChat, R"({"messages":[{"role":"user","content":"x","mood":"n"}],
      "store":true,"stream":true,"stream_options":{"include_obfuscation":true},"metadata":{}})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->ignored, (std::vector<std::string>{"stream_options.include_obfuscation",
                                                       "messages[0].mood", "store", "metadata"}));
}

TEST(OpenAiRequestTest, UnsupportedMembersThatAskForNothingPass) {
  MustParse(Endpoint::kChat,
            Chat(R"("tools":[],"tool_choice":"none","response_format":{"type":"text"},"best_of":1,
      "modalities":["text"],"functions":[],"function_call":"auto","echo":false,"suffix":"","length_penalty":1.0)"));
}

struct BadCase {
  Endpoint endpoint;
  std::string body;
  std::string field;
};

// Members of a chat request with values of the wrong type or out of range.
std::vector<BadCase> BadMembers() {
  std::vector<BadCase> cases;
  const auto chat = [&](const std::string& name, const std::vector<std::string>& values) {
    for (const std::string& value : values)
      cases.push_back({Endpoint::kChat, Chat(absl::StrCat("\"", name, "\":", value)), name});
  };
  const std::vector<std::string> not_numbers = {R"("x")", "true", "[]", "{}", "[1]", "1e999"};
  const std::vector<std::string> not_integers = {
      R"("x")", "true", "[]", "{}", "1.5", "1e30", "99999999999999999999"};
  const std::vector<std::string> not_bools = {R"("x")", "1", "[]", "{}", "0.5"};
  const std::vector<std::string> not_strings = {"1", "true", "[]", "{}",
                                                absl::StrCat("\"", std::string(300, 'x'), "\"")};
  for (const char* name : {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                           "repetition_penalty"}) {
    chat(name, not_numbers);
    chat(name, {"-3", "101"});
  }
  for (const char* name : {"n", "seed", "max_tokens", "max_completion_tokens", "min_tokens",
                           "top_k", "top_logprobs", "priority"}) {
    chat(name, not_integers);
  }
  for (const char* name : {"stream", "logprobs", "ignore_eos", "skip_special_tokens",
                           "include_stop_str_in_output", "separate_reasoning"}) {
    chat(name, not_bools);
  }
  for (const char* name : {"model", "user", "cache_salt", "prompt_cache_key"})
    chat(name, not_strings);
  chat("n", {"0", "9", "-1"});
  chat("max_tokens", {"-1"});
  chat("top_logprobs", {"-1", "21", "5"});
  chat("stop", {"1", "true", "{}", R"([1])", R"([""])", R"("")", R"(["a","b","c","d","e"])",
                absl::StrCat("\"", std::string(129, 'x'), "\"")});
  chat("stop_token_ids", {"1", R"(["a"])", "[-1]", "[1.5]", "[4294967296]", "{}"});
  chat("logit_bias", {"1", "[]", R"({"a":1})", R"({"-1":1})", R"({"1":"a"})", R"({"1":101})",
                      R"({"1":1e999})", R"({"1":null})"});
  chat("stream_options", {"1", "true", "[]", R"({"include_usage":true})"});
  chat("tools", {"1", "{}", R"("x")"});
  chat("tool_choice", {"1", "[]", "true"});
  chat("parallel_tool_calls", {"false"});
  chat("chat_template_kwargs", {"1", "[]", R"("x")"});
  chat("reasoning_effort", {"1", "[]"});
  chat("response_format", {R"({"type":"json_object"})", R"({"type":"json_schema"})", R"("text")"});
  for (const char* name : {"functions", "audio", "prediction", "guided_json", "structured_outputs",
                           "prompt_logprobs", "echo", "best_of", "suffix", "use_beam_search",
                           "chat_template", "continue_final_message"}) {
    chat(name, {R"("x")", "2"});
  }
  return cases;
}

std::vector<BadCase> BadChats() {
  const std::pair<std::string, std::string> bodies[] = {
      {"{}", "messages"},
      {R"({"messages":null})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":"hello"})", "messages"},
      {R"({"messages":[1]})", "messages[0]"},
      {R"({"messages":[{}]})", "messages[0].role"},
      {R"({"messages":[{"role":1,"content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"wizard","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"function","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":1}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"","tool_calls":[{}]}]})",
       "messages[1].tool_calls[0]"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":7}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":7,"function":{"name":"f"}}]}]})",
       "messages[0].tool_calls[0].id"},
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})", "messages[0].tool_calls"},
      {R"({"messages":[{"role":"user","content":"x","tool_calls":[{}]}]})",
       "messages[0].tool_calls"},
      {R"({"messages":[{"role":"assistant","content":"","reasoning_content":7}]})",
       "messages[0].reasoning_content"},
      {R"({"messages":[{"role":"tool","content":"x","tool_call_id":7}]})",
       "messages[0].tool_call_id"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]})",
       "tools[0].function"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"web","function":{"name":"f"}}]})",
       "tools[0].type"},
      {R"({"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":1}})",
       "stream_options.include_usage"},
      {"", ""},
      {"[]", ""},
      {"1", ""},
      {"{", ""},
      {R"({"messages":[}])", ""},
      {R"({"a":1,"a":2})", ""},
      {"{\"a\":\"\xff\"}", ""},
      {R"({"a":NaN})", ""},
      {R"({"a":1} x)", ""},
      {std::string(100, '[') + std::string(100, ']'), ""},
      {absl::StrCat(R"({"a":)", std::string(40, '['), std::string(40, ']'), "}"), ""},
  };
  std::vector<BadCase> cases;
  for (const auto& [body, field] : bodies) cases.push_back({Endpoint::kChat, body, field});
  return cases;
}

std::vector<BadCase> BadPrompts() {
  const std::pair<std::string, std::string> prompts[] = {
      {"{}", "prompt"},
      {R"({"prompt":null})", "prompt"},
      {R"({"prompt":1})", "prompt"},
      {R"({"prompt":{}})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt"},
      {R"({"prompt":[-1]})", "prompt"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":["a",1]})", "prompt"},
      {R"({"prompt":[1.5]})", "prompt"},
      {R"({"prompt":[[1,null]]})", "prompt"},
      {R"({"prompt":["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]})",
       "prompt"},
      {Completion(R"("logprobs":true)"), "logprobs"},
      {Completion(R"("logprobs":21)"), "logprobs"},
      {Completion(R"("echo":true)"), "echo"},
      {Completion(R"("best_of":2)"), "best_of"},
      {Completion(R"("suffix":"end")"), "suffix"},
      {Completion(R"("tools":[{}])"), "tools"},
      {Completion(R"("tool_choice":"required")"), "tool_choice"},
  };
  std::vector<BadCase> cases;
  for (const auto& [body, field] : prompts) cases.push_back({Endpoint::kCompletions, body, field});
  return cases;
}

TEST(OpenAiRequestTest, RefusesBadRequestsNamingTheMember) {
  std::vector<BadCase> cases = BadMembers();
  for (BadCase& bad : BadChats()) cases.push_back(std::move(bad));
  for (BadCase& bad : BadPrompts()) cases.push_back(std::move(bad));
  EXPECT_GE(cases.size(), 200u);
  for (const BadCase& bad : cases) {
    const auto parsed = ParseGeneration(bad.endpoint, bad.body);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad.body;
    EXPECT_EQ(rpc::DetailOf(parsed.status()).reason(), v1::INVALID_FIELD) << bad.body;
    EXPECT_EQ(rpc::DetailOf(parsed.status()).field(), bad.field) << bad.body << "\n"
                                                                 << parsed.status();
  }
}

TEST(OpenAiRequestTest, RefusesTooManyEntries) {
  std::string bias;
  for (int i = 0; i < 301; ++i) absl::StrAppend(&bias, i == 0 ? "" : ",", "\"", i, "\":1");
  auto parsed = ParseGeneration(Endpoint::kChat, Chat(absl::StrCat("\"logit_bias\":{", bias, "}")));
  EXPECT_EQ(rpc::DetailOf(parsed.status()).field(), "logit_bias");
  std::string messages;
  for (int i = 0; i < 4097; ++i)
    absl::StrAppend(&messages, i == 0 ? "" : ",", R"({"role":"user","content":"x"})");
  parsed = ParseGeneration(Endpoint::kChat, absl::StrCat("{\"messages\":[", messages, "]}"));
  EXPECT_EQ(rpc::DetailOf(parsed.status()).field(), "messages");
}

TEST(OpenAiRequestTest, ReadsTokenizerRequests) {
  const auto text = ParseTokenize(R"({"model":"m","prompt":"hi","parse_special":true})");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->text(), "hi");
  EXPECT_TRUE(text->special());
  const auto chat = ParseTokenize(R"({"messages":[{"role":"user","content":"x"}]})");
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(chat->messages().messages_size(), 1);
  const auto ids = ParseDetokenize(R"({"model":"m","tokens":[1,2]})");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->ids_size(), 2);
  EXPECT_EQ(rpc::DetailOf(ParseTokenize("{}").status()).field(), "prompt");
  EXPECT_EQ(rpc::DetailOf(ParseTokenize(R"({"prompt":1})").status()).field(), "prompt");
  EXPECT_EQ(rpc::DetailOf(ParseDetokenize("{}").status()).field(), "tokens");
  EXPECT_EQ(rpc::DetailOf(ParseDetokenize(R"({"tokens":["a"]})").status()).field(), "tokens");
}

}  // namespace
}  // namespace sluice::http
