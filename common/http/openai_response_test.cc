#include "http/openai_response.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "http/openai_error.h"
#include "rpc/error.h"

namespace sluice::http {
namespace {

ReplyInfo Info(Endpoint endpoint) {
  ReplyInfo info;
  info.endpoint = endpoint;
  info.id = "id-1";
  info.created_s = 7;
  info.model = "m";
  return info;
}

v1::ChoiceDelta Delta(const std::string& text, const std::string& finish = "") {
  v1::ChoiceDelta delta;
  delta.set_text(text);
  delta.add_token_ids(1);
  delta.set_finish_reason(finish);
  return delta;
}

v1::TokenLogprobs Logprobs(const std::string& bytes, float logprob) {
  v1::TokenLogprobs entry;
  entry.set_token(5);
  entry.set_token_bytes(bytes);
  entry.set_logprob(logprob);
  return entry;
}

void AddTop(const std::string& bytes, float logprob, v1::TokenLogprobs* entry) {
  v1::TopLogprob* top = entry->add_top();
  top->set_token(6);
  top->set_token_bytes(bytes);
  top->set_logprob(logprob);
}

v1::Usage SomeUsage() {
  v1::Usage usage;
  usage.set_prompt_tokens(3);
  usage.set_completion_tokens(2);
  usage.set_cached_tokens(1);
  return usage;
}

TEST(OpenAiResponseTest, ChatChunks) {
  ReplyInfo info = Info(Endpoint::kChat);
  ReplyChoice choice(Endpoint::kChat);
  EXPECT_EQ(
      StreamChunk(info, 0, Delta("Hi"), &choice, nullptr),
      R"({"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":null,"choices":[)"
      R"({"index":0,"delta":{"role":"assistant","content":"Hi"},"logprobs":null,"finish_reason":null}]})");
  info.usage_member = true;
  info.fingerprint = "fp_1";
  EXPECT_EQ(
      StreamChunk(info, 1, Delta("!\n", "stop"), &choice, nullptr),
      R"({"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp_1","choices":[)"
      R"({"index":1,"delta":{"content":"!\n"},"logprobs":null,"finish_reason":"stop"}],"usage":null})");
  const v1::Usage usage = SomeUsage();
  EXPECT_EQ(
      UsageChunk(info, usage),
      R"({"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp_1","choices":[],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}})");
  EXPECT_NE(StreamChunk(info, 1, Delta("x"), &choice, &usage)
                .find(R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}})"),
            std::string::npos);
}

TEST(OpenAiResponseTest, CompletionChunks) {
  ReplyChoice choice(Endpoint::kCompletions);
  EXPECT_EQ(
      StreamChunk(Info(Endpoint::kCompletions), 0, Delta("Hi", "length"), &choice, nullptr),
      R"({"id":"id-1","object":"text_completion","created":7,"model":"m","system_fingerprint":null,"choices":[)"
      R"({"index":0,"text":"Hi","logprobs":null,"finish_reason":"length"}]})");
}

TEST(OpenAiResponseTest, WholeReplies) {
  std::vector<ReplyChoice> choices(2, ReplyChoice(Endpoint::kChat));
  choices[0].text = "a\"b";
  choices[0].finish_reason = "stop";
  choices[1].finish_reason = "length";
  EXPECT_EQ(
      WholeReply(Info(Endpoint::kChat), choices, SomeUsage()),
      R"({"id":"id-1","object":"chat.completion","created":7,"model":"m","system_fingerprint":null,"choices":[)"
      R"({"index":0,"message":{"role":"assistant","content":"a\"b","refusal":null},"logprobs":null,"finish_reason":"stop"},)"
      R"({"index":1,"message":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":"length"}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}})");
}

void AddCall(uint32_t index, const char* id, const char* name, const char* arguments,
             v1::ChoiceDelta* delta) {
  v1::ToolCallDelta* call = delta->add_tool_calls();
  call->set_index(index);
  call->set_id(id);
  call->set_name(name);
  call->set_arguments(arguments);
}

TEST(OpenAiResponseTest, ReasoningAndCallsStreamApartFromTheContent) {
  const ReplyInfo info = Info(Endpoint::kChat);
  ReplyChoice choice(Endpoint::kChat);
  const auto chunk = [&](const v1::ChoiceDelta& delta) {
    const std::string all = StreamChunk(info, 0, delta, &choice, nullptr);
    const size_t begin = all.find("\"delta\":") + 8;
    return all.substr(begin, all.find(",\"logprobs\"") - begin);
  };
  v1::ChoiceDelta delta;
  delta.set_reasoning_content("hm");
  EXPECT_EQ(chunk(delta), R"({"role":"assistant","reasoning_content":"hm"})");
  delta.set_text("Ok");
  EXPECT_EQ(chunk(delta), R"({"reasoning_content":"hm","content":"Ok"})");
  delta.Clear();
  AddCall(0, "id0", "f", "", &delta);
  EXPECT_EQ(
      chunk(delta),
      R"({"tool_calls":[{"index":0,"id":"id0","type":"function","function":{"name":"f","arguments":""}}]})");
  delta.Clear();
  AddCall(0, "", "", "{\"a\"", &delta);
  AddCall(1, "id1", "g", "{}", &delta);
  EXPECT_EQ(
      chunk(delta),
      R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}},)"
      R"({"index":1,"id":"id1","type":"function","function":{"name":"g","arguments":"{}"}}]})");
  EXPECT_EQ(chunk(v1::ChoiceDelta()), R"({"content":""})");
}

TEST(OpenAiResponseTest, GatheredDeltasMakeOneMessage) {
  std::vector<ReplyChoice> choices(1, ReplyChoice(Endpoint::kChat));
  v1::ChoiceDelta delta;
  delta.set_reasoning_content("h");
  Gather(delta, &choices[0]);
  Gather(delta, &choices[0]);
  delta.Clear();
  AddCall(0, "id0", "f", "{\"a\"", &delta);
  Gather(delta, &choices[0]);
  delta.Clear();
  AddCall(0, "", "", ": 1}", &delta);
  AddCall(1, "id1", "g", "{}", &delta);
  delta.set_finish_reason("tool_calls");
  Gather(delta, &choices[0]);
  EXPECT_GT(choices[0].bytes(), 20u);
  const std::string reply = WholeReply(Info(Endpoint::kChat), choices, SomeUsage());
  EXPECT_NE(
      reply.find(
          R"("message":{"role":"assistant","reasoning_content":"hh","content":null,"tool_calls":[)"
          R"({"id":"id0","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},)"
          R"({"id":"id1","type":"function","function":{"name":"g","arguments":"{}"}}],"refusal":null},)"
          R"("logprobs":null,"finish_reason":"tool_calls")"),
      std::string::npos)
      << reply;
}

TEST(OpenAiResponseTest, ChatLogprobsSpellOutBytes) {
  v1::TokenLogprobs entry = Logprobs("\xc3", -0.5f);
  AddTop("ok", -0.25f, &entry);
  AddTop("", -std::numeric_limits<float>::infinity(), &entry);
  LogprobsText text(Endpoint::kChat);
  text.Append(entry);
  JsonWriter json;
  text.Write(&json);
  EXPECT_EQ(
      json.Take(),
      R"({"content":[{"token":"bytes:\\xc3","logprob":-0.5,"bytes":[195],"top_logprobs":[)"
      R"({"token":"ok","logprob":-0.25,"bytes":[111,107]},{"token":"token_id:6","logprob":-9999,"bytes":null}]}],)"
      R"("refusal":null})");
}

TEST(OpenAiResponseTest, CompletionLogprobsAreParallelLists) {
  v1::TokenLogprobs first = Logprobs("h\xc3\xa9", -1);
  AddTop("a", -0.5f, &first);
  AddTop("a", -2, &first);  // another token with the same text
  LogprobsText text(Endpoint::kCompletions);
  text.Append(first);
  text.Append(Logprobs("x", -3));
  EXPECT_EQ(text.text_offset(), 3u);  // characters, not bytes
  JsonWriter json;
  text.Write(&json);
  EXPECT_EQ(json.Take(),
            "{\"tokens\":[\"h\xc3\xa9\",\"x\"],\"token_logprobs\":[-1,-3],"
            "\"top_logprobs\":[{\"a\":-0.5,\"h\xc3\xa9\":-1},{\"x\":-3}],\"text_offset\":[0,2]}");
}

TEST(OpenAiResponseTest, StreamedOffsetsGoOn) {
  ReplyInfo info = Info(Endpoint::kCompletions);
  info.logprobs = true;
  ReplyChoice choice(Endpoint::kCompletions);
  v1::ChoiceDelta delta = Delta("ab");
  *delta.add_logprobs() = Logprobs("ab", -1);
  EXPECT_NE(StreamChunk(info, 0, delta, &choice, nullptr).find(R"("text_offset":[0])"),
            std::string::npos);
  EXPECT_NE(StreamChunk(info, 0, delta, &choice, nullptr).find(R"("text_offset":[2])"),
            std::string::npos);
}

TEST(OpenAiResponseTest, FingerprintFollowsTheNumerics) {
  v1::GenerateStart start;
  EXPECT_EQ(Fingerprint(start), "");
  start.add_numerics_ids(std::string(16, 'a'));
  start.add_numerics_ids(std::string(16, 'b'));
  const std::string one = Fingerprint(start);
  EXPECT_EQ(one.size(), 13u) << one;
  start.set_numerics_ids(1, std::string(16, 'c'));
  EXPECT_NE(Fingerprint(start), one);
}

TEST(OpenAiResponseTest, ModelsAndTokens) {
  v1::ListModelsResponse models;
  EXPECT_EQ(ModelList(models), R"({"object":"list","data":[]})");
  v1::Model* model = models.add_models();
  model->set_id("m");
  model->set_created(9);
  model->set_context_tokens(64);
  EXPECT_EQ(
      ModelList(models),
      R"({"object":"list","data":[{"id":"m","object":"model","created":9,"owned_by":"sluice","max_model_len":64}]})");
  v1::TokenizeResponse tokens;
  tokens.add_ids(4);
  EXPECT_EQ(TokenizeReply(tokens, 0), R"({"count":1,"max_model_len":null,"tokens":[4]})");
  v1::DetokenizeResponse text;
  text.set_text("hi");
  EXPECT_EQ(DetokenizeReply(text), R"({"prompt":"hi"})");
}

std::string HeaderOf(const HttpReply& reply, absl::string_view name) {
  for (const auto& [key, value] : reply.headers) {
    if (key == name) return value;
  }
  return "";
}

TEST(OpenAiErrorTest, EveryReasonHasItsStatus) {
  const struct {
    v1::ErrorReason reason;
    int status;
    const char* type;
    const char* code;
    const char* retry;
  } cases[] = {
      {v1::INVALID_FIELD, 400, "invalid_request_error", "invalid_value", ""},
      {v1::CONTEXT_LENGTH_EXCEEDED, 400, "invalid_request_error", "context_length_exceeded", ""},
      {v1::MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found", ""},
      {v1::INVALID_API_KEY, 401, "authentication_error", "invalid_api_key", ""},
      {v1::PERMISSION_DENIED, 403, "permission_error", "permission_denied", ""},
      {v1::RATE_LIMITED, 429, "rate_limit_error", "rate_limit_exceeded", "true"},
      {v1::QUOTA_EXCEEDED, 429, "insufficient_quota", "insufficient_quota", "false"},
      {v1::OVERLOADED, 503, "service_unavailable_error", "server_is_overloaded", "true"},
      {v1::DRAINING, 503, "service_unavailable_error", "server_is_overloaded", "true"},
      {v1::NO_READY_WORKERS, 503, "service_unavailable_error", "server_is_overloaded", "true"},
      {v1::DEADLINE_EXCEEDED, 504, "timeout", "deadline_exceeded", "false"},
      {v1::WORKER_FAILED, 503, "service_unavailable_error", "worker_failed", "true"},
      {v1::REQUEST_POISONED, 500, "server_error", "request_poisoned", "false"},
      {v1::INTERNAL, 500, "server_error", "internal_error", "false"},
      {v1::NOT_SUPPORTED, 400, "invalid_request_error", "not_supported", ""},
  };
  for (const auto& row : cases) {
    const HttpReply reply =
        ErrorReply(rpc::MakeError(row.reason, "why", {.field = "choices"}), Endpoint::kChat, "r-1");
    EXPECT_EQ(reply.status, row.status) << row.code;
    // A poisoned request is its sender's to mend, so he reads why.
    const bool hidden = row.status == 500 && row.reason != v1::REQUEST_POISONED;
    const std::string message =
        hidden ? "the request failed inside the server; its id is r-1" : "why";
    EXPECT_EQ(reply.body, absl::StrCat(R"({"error":{"message":")", message, R"(","type":")",
                                       row.type, R"(","param":"n","code":")", row.code, R"("}})"));
    EXPECT_EQ(HeaderOf(reply, "x-should-retry"), row.retry) << row.code;
    EXPECT_EQ(HeaderOf(reply, "Retry-After"), row.retry == std::string("true") ? "1" : "")
        << row.code;
  }
  const HttpReply unknown = ErrorReply(absl::UnknownError("secret"), Endpoint::kChat, "r-1");
  EXPECT_EQ(unknown.status, 500);
  EXPECT_EQ(unknown.body.find("secret"), std::string::npos);
}

TEST(OpenAiErrorTest, RetryAfterIsRoundedUp) {
  const HttpReply reply = ErrorReply(
      rpc::MakeError(v1::RATE_LIMITED, "slow down", {.retry_after = absl::Milliseconds(1200)}),
      Endpoint::kChat, "r");
  EXPECT_EQ(HeaderOf(reply, "Retry-After"), "2");
  EXPECT_EQ(HeaderOf(reply, "retry-after-ms"), "1200");
}

TEST(OpenAiErrorTest, FieldsGetTheClientsNames) {
  EXPECT_EQ(ParamOf("sampling.top_p", Endpoint::kChat), "top_p");
  EXPECT_EQ(ParamOf("input", Endpoint::kChat), "messages");
  EXPECT_EQ(ParamOf("input", Endpoint::kCompletions), "prompt");
  EXPECT_EQ(ParamOf("token_ids", Endpoint::kCompletions), "prompt");
  EXPECT_EQ(ParamOf("logprobs", Endpoint::kChat), "top_logprobs");
  EXPECT_EQ(ParamOf("stop", Endpoint::kChat), "stop");
}

}  // namespace
}  // namespace sluice::http
