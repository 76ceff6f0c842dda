#include "http/openai_server.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "http/fake_backend.h"
#include "http/http_test_client.h"

namespace sluice::http {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);  // only reached by a failing test
constexpr absl::string_view kChat = "/v1/chat/completions";
constexpr absl::string_view kCompletions = "/v1/completions";
constexpr absl::string_view kId = "x-request-id: r1\r\n";

std::string Body(absl::string_view members) {
  return absl::StrCat(R"({"messages":[{"role":"user","content":"hello"}])",
                      members.empty() ? "" : ",", members, "}");
}

class OpenAiServerTest : public testing::Test {
 protected:
  OpenAiServerTest() { Start({}); }
  void Start(OpenAiServerOptions options) {
    options.http.listen = "127.0.0.1:0";
    auto server = OpenAiServer::Start(options, backend_, clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  HttpTestClient Connect(int receive_bytes = 0) {
    return HttpTestClient(server_->address(), receive_bytes);
  }
  // The data of the next event of a stream; "" at its end.
  static std::string Event(HttpTestClient* client) {
    const std::string text = client->ReadUntil("\n\n\r\n");
    const size_t begin = text.find("data: ");
    if (begin == std::string::npos) return "";
    return text.substr(begin + 6, text.size() - begin - 6 - 4);
  }
  static bool Has(absl::string_view text, absl::string_view part) {
    return absl::StrContains(text, part);
  }

  FakeClock clock_;
  FakeBackend backend_;
  std::unique_ptr<OpenAiServer> server_;
};

TEST_F(OpenAiServerTest, AnswersChat) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(R"("model":"toy","whatever":1)"),
                 absl::StrCat(kId, "x-session-affinity: s\r\n"));
  const FakeGeneration generation = backend_.Next();
  EXPECT_EQ(generation.request.model(), "toy");
  EXPECT_EQ(generation.request.request_id(), "r1");
  EXPECT_EQ(generation.request.session_affinity(), "s");
  EXPECT_EQ(generation.caller.tenant, TenantId("tenant"));
  EXPECT_TRUE(generation.Start());
  EXPECT_TRUE(generation.Token("Hel"));
  clock_.Advance(absl::Milliseconds(42));
  EXPECT_TRUE(generation.Token("lo", "stop"));
  generation.End(2);
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.result_int(), 200u);
  EXPECT_TRUE(Has(
      answer.body(),
      R"({"id":"chatcmpl-r1","object":"chat.completion","created":3600,"model":"toy","system_fingerprint":"fp_)"));
  EXPECT_TRUE(Has(
      answer.body(),
      R"("message":{"role":"assistant","content":"Hello","refusal":null},"logprobs":null,"finish_reason":"stop")"));
  EXPECT_TRUE(Has(
      answer.body(),
      R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":2}})"));
  EXPECT_EQ(answer["x-request-id"], "r1");
  EXPECT_EQ(answer["openai-processing-ms"], "42");
  EXPECT_EQ(answer["x-sluice-ignored-fields"], "whatever");
  EXPECT_FALSE(backend_.cancelled.TryPop().has_value());
}

TEST_F(OpenAiServerTest, StreamsChat) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(R"("stream":true,"stream_options":{"include_usage":true})"),
                 kId);
  const FakeGeneration generation = backend_.Next();
  generation.Start();
  EXPECT_TRUE(generation.Token("Hel"));
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_TRUE(Has(head, "200 OK")) << head;
  EXPECT_TRUE(Has(head, "Content-Type: text/event-stream")) << head;
  EXPECT_TRUE(Has(
      Event(&client),
      R"("delta":{"role":"assistant","content":"Hel"},"logprobs":null,"finish_reason":null}],"usage":null})"));
  EXPECT_TRUE(generation.Token("lo", "length"));
  EXPECT_TRUE(
      Has(Event(&client),
          R"("delta":{"content":"lo"},"logprobs":null,"finish_reason":"length"}],"usage":null})"));
  generation.End(2);
  EXPECT_TRUE(
      Has(Event(&client),
          R"("choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,)"));
  EXPECT_EQ(Event(&client), "[DONE]");
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
}

TEST_F(OpenAiServerTest, ContinuousUsageCountsUp) {
  HttpTestClient client = Connect();
  client.Request(
      "POST", kCompletions,
      R"({"prompt":"x","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  const FakeGeneration generation = backend_.Next();
  EXPECT_EQ(generation.request.max_tokens(), 16u);
  generation.Start();
  generation.Token("a");
  EXPECT_TRUE(
      Has(Event(&client), R"("usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4})"));
  generation.Token("b", "stop");
  EXPECT_TRUE(
      Has(Event(&client), R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5})"));
  generation.End(2);
  EXPECT_TRUE(Has(Event(&client), R"("cached_tokens":2)"));
  EXPECT_EQ(Event(&client), "[DONE]");
}

TEST_F(OpenAiServerTest, ChoicesOfOnePromptAreToldApart) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(R"("n":2,"stream":true)"));
  const FakeGeneration generation = backend_.Next();
  generation.Start();
  generation.Token("a", "", 0);
  generation.Token("b", "stop", 1);
  generation.Token("x", "", 9);  // a choice nobody asked for
  generation.Token("c", "stop", 0);
  generation.End(3);
  EXPECT_TRUE(Has(Event(&client), R"({"index":0,"delta":{"role":"assistant","content":"a"})"));
  EXPECT_TRUE(Has(Event(&client), R"({"index":1,"delta":{"role":"assistant","content":"b"})"));
  EXPECT_TRUE(Has(Event(&client), R"({"index":0,"delta":{"content":"c"})"));
  EXPECT_EQ(Event(&client), "[DONE]");
}

TEST_F(OpenAiServerTest, PromptsOfOneRequestShareAnAnswer) {
  HttpTestClient client = Connect();
  client.Request("POST", kCompletions, R"({"prompt":["x","y"],"logprobs":0})", kId);
  const FakeGeneration first = backend_.Next();
  const FakeGeneration second = backend_.Next();
  EXPECT_EQ(first.request.request_id(), "r1-0");
  EXPECT_EQ(second.request.text(), "y");
  first.Start();
  second.Start();
  second.Token("two", "stop");
  second.End(1);
  first.Token("one", "length");
  first.End(1);
  const HttpAnswer answer = client.Read();
  EXPECT_TRUE(Has(answer.body(),
                  R"({"index":0,"text":"one","logprobs":{"tokens":["one"],"token_logprobs":[-1],)"))
      << answer.body();
  EXPECT_TRUE(Has(answer.body(), R"({"index":1,"text":"two")"));
  EXPECT_TRUE(Has(answer.body(), R"("prompt_tokens":6,"completion_tokens":2,"total_tokens":8)"));
}

TEST_F(OpenAiServerTest, FailureOfOnePromptEndsTheOthers) {
  HttpTestClient client = Connect();
  client.Request("POST", kCompletions, R"({"prompt":["x","y"]})", kId);
  const FakeGeneration first = backend_.Next();
  const FakeGeneration second = backend_.Next();
  second.sink->OnEnd(rpc::MakeError(v1::OVERLOADED, "busy"));
  EXPECT_EQ(client.Read().result_int(), 503u);
  EXPECT_EQ(backend_.cancelled.PopFor(kLong), "r1-0");
  EXPECT_FALSE(first.Token("x"));
}

TEST_F(OpenAiServerTest, FailureBeforeTheFirstTokenHasItsStatus) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(R"("stream":true)"), kId);
  backend_.Next().sink->OnEnd(
      rpc::MakeError(v1::RATE_LIMITED, "slow down", {.retry_after = absl::Seconds(3)}));
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.result_int(), 429u);
  EXPECT_EQ(answer["Retry-After"], "3");
  EXPECT_EQ(answer["x-should-retry"], "true");
  EXPECT_EQ(answer["x-request-id"], "r1");
  EXPECT_EQ(
      answer.body(),
      R"({"error":{"message":"slow down","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}})");
}

TEST_F(OpenAiServerTest, FailureInsideAStreamIsAnEventWithoutDone) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(R"("stream":true)"), kId);
  const FakeGeneration generation = backend_.Next();
  generation.Start();
  generation.Token("a");
  EXPECT_TRUE(Has(Event(&client), R"("content":"a")"));
  generation.sink->OnEnd(absl::InternalError("a secret of the inside"));
  EXPECT_EQ(
      Event(&client),
      R"({"error":{"message":"the request failed inside the server; its id is r1","type":"server_error",)"
      R"("param":null,"code":"internal_error"}})");
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
}

TEST_F(OpenAiServerTest, SinkThatIsDroppedIsAnError) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(""));
  backend_.Next();
  EXPECT_EQ(client.Read().result_int(), 500u);
}

TEST_F(OpenAiServerTest, DisconnectCancels) {
  for (const char* members : {R"("stream":true)", ""}) {
    auto client = std::make_unique<HttpTestClient>(server_->address());
    client->Request("POST", kChat, Body(members), kId);
    const FakeGeneration generation = backend_.Next();
    EXPECT_FALSE(backend_.cancelled.TryPop().has_value());
    client.reset();
    EXPECT_EQ(backend_.cancelled.PopFor(kLong), "r1");
    generation.sink->OnEnd(absl::CancelledError("cancelled"));
  }
  HttpTestClient client = Connect();
  client.Request("POST", kCompletions, R"({"prompt":["x","y"],"stream":true})", kId);
  const FakeGeneration first = backend_.Next();
  const FakeGeneration second = backend_.Next();
  first.Start();
  first.Token("a");
  EXPECT_TRUE(Has(Event(&client), "\"a\""));
  client.Close();
  std::vector<std::string> ids = {*backend_.cancelled.PopFor(kLong),
                                  *backend_.cancelled.PopFor(kLong)};
  EXPECT_EQ(ids, (std::vector<std::string>{"r1-0", "r1-1"}));
}

TEST_F(OpenAiServerTest, SlowReaderIsCutOffAndCancelled) {
  HttpTestClient client = Connect(4096);
  client.Request("POST", kChat, Body(R"("stream":true)"), kId);
  const FakeGeneration generation = backend_.Next();
  generation.Start();
  const std::string text(1000, 'x');
  size_t tokens = 0;
  while (generation.Token(text)) ++tokens;
  EXPECT_LT(tokens, 4000u);
  EXPECT_EQ(backend_.cancelled.PopFor(kLong), "r1");
  generation.sink->OnEnd(absl::CancelledError("the client reads too slowly"));
  EXPECT_FALSE(Has(client.ReadAll(), "[DONE]"));
}

TEST_F(OpenAiServerTest, AnswersThatGrowTooLargeFail) {
  Start({.reply_bytes_max = 1000});
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(""));
  const FakeGeneration generation = backend_.Next();
  generation.Start();
  EXPECT_TRUE(generation.Token(std::string(600, 'x')));
  EXPECT_FALSE(generation.Token(std::string(600, 'x')));
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.result_int(), 400u);
  EXPECT_TRUE(Has(answer.body(), "limit_exceeded"));
}

TEST_F(OpenAiServerTest, SilentStreamsGetPings) {
  Start({.ping_interval = absl::Milliseconds(5)});
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(R"("stream":true)"));
  const FakeGeneration generation = backend_.Next();
  EXPECT_TRUE(Has(client.ReadUntil(": ping\n\n\r\n"), "text/event-stream"));
  EXPECT_TRUE(Has(client.ReadUntil(": ping\n\n\r\n"), ": ping"));
  generation.Start();
  generation.Token("a", "stop");
  EXPECT_TRUE(Has(Event(&client), R"("delta":{"role":"assistant","content":"a"})"));
}

TEST_F(OpenAiServerTest, KeysAreChecked) {
  backend_.keys = true;
  HttpTestClient client = Connect();
  for (const char* header :
       {"", "Authorization: Bearer bad\r\n", "Authorization: Basic good\r\n"}) {
    for (const auto& [method, path] : {std::pair("POST", "/v1/chat/completions"),
                                       {"POST", "/v1/completions"},
                                       {"GET", "/v1/models"},
                                       {"GET", "/v1/models/x"},
                                       {"POST", "/tokenize"},
                                       {"POST", "/detokenize"}}) {
      const HttpAnswer answer = client.Call(method, path, method[0] == 'P' ? "{}" : "", header);
      EXPECT_EQ(answer.result_int(), 401u) << path;
      EXPECT_EQ(answer["WWW-Authenticate"], "Bearer");
      EXPECT_TRUE(Has(answer.body(), R"("code":"invalid_api_key")"));
    }
  }
  EXPECT_EQ(client.Call("GET", "/v1/models", "", "Authorization: bearer good\r\n").result_int(),
            200u);
  EXPECT_EQ(client.Call("GET", "/health").result_int(), 200u);
}

TEST_F(OpenAiServerTest, LimitsAreToldInHeaders) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(""));
  const FakeGeneration generation = backend_.Next();
  v1::GenerateResponse start;
  v1::RateLimits& limits = *start.mutable_start()->mutable_rate_limits();
  limits.mutable_requests()->set_limit(60);
  limits.mutable_requests()->set_remaining(59);
  limits.mutable_requests()->set_reset_ms(1000);
  limits.mutable_tokens()->set_limit(90000);
  limits.mutable_tokens()->set_reset_ms(90500);
  generation.sink->OnMessage(start);
  generation.Token("a", "stop");
  generation.End(1);
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.result_int(), 200u);
  EXPECT_EQ(answer["x-ratelimit-limit-requests"], "60");
  EXPECT_EQ(answer["x-ratelimit-remaining-requests"], "59");
  EXPECT_EQ(answer["x-ratelimit-reset-requests"], "1s");
  EXPECT_EQ(answer["x-ratelimit-limit-tokens"], "90000");
  EXPECT_EQ(answer["x-ratelimit-remaining-tokens"], "0");
  EXPECT_EQ(answer["x-ratelimit-reset-tokens"], "1m30.5s");

  client.Request("POST", kChat, Body(""));
  absl::Status refused =
      rpc::MakeError(v1::RATE_LIMITED, "too many", {.retry_after = absl::Milliseconds(1500)});
  v1::ErrorDetail detail = rpc::DetailOf(refused);
  detail.mutable_rate_limits()->mutable_requests()->set_limit(60);
  rpc::SetDetail(&refused, detail);
  backend_.Next().sink->OnEnd(refused);
  const HttpAnswer error = client.Read();
  EXPECT_EQ(error.result_int(), 429u);
  EXPECT_EQ(error["Retry-After"], "2");
  EXPECT_EQ(error["retry-after-ms"], "1500");
  EXPECT_EQ(error["x-should-retry"], "true");
  EXPECT_EQ(error["x-ratelimit-limit-requests"], "60");
  EXPECT_EQ(error.count("x-ratelimit-limit-tokens"), 0u);
}

TEST_F(OpenAiServerTest, ListsModels) {
  HttpTestClient client = Connect();
  EXPECT_TRUE(Has(client.Call("GET", "/v1/models").body(), R"("data":[{"id":"org/toy")"));
  EXPECT_TRUE(Has(client.Call("GET", "/v1/models/org/toy").body(), R"({"id":"org/toy")"));
  EXPECT_TRUE(Has(client.Call("GET", "/v1/models/org%2Ftoy").body(), R"({"id":"org/toy")"));
  const HttpAnswer answer = client.Call("GET", "/v1/models/none%zz");
  EXPECT_EQ(answer.result_int(), 404u);
  EXPECT_TRUE(Has(answer.body(), R"("code":"model_not_found")"));
}

TEST_F(OpenAiServerTest, TokenizesAndBack) {
  HttpTestClient client = Connect();
  EXPECT_EQ(client.Call("POST", "/tokenize", R"({"prompt":"AB"})").body(),
            R"({"count":2,"max_model_len":128,"tokens":[65,66]})");
  EXPECT_EQ(client.Call("POST", "/detokenize", R"({"tokens":[65,66]})").body(),
            R"({"prompt":"AB"})");
  EXPECT_EQ(client.Call("POST", "/tokenize", R"({"prompt":"AB","model":"none"})").result_int(),
            404u);
  EXPECT_EQ(client.Call("POST", "/detokenize", "{}").result_int(), 400u);
}

TEST_F(OpenAiServerTest, ProbesAndVersion) {
  HttpTestClient client = Connect();
  for (const char* path : {"/health", "/live", "/ready"})
    EXPECT_EQ(client.Call("GET", path).result_int(), 200u) << path;
  backend_.ready = false;
  EXPECT_EQ(client.Call("GET", "/ready").result_int(), 503u);
  EXPECT_EQ(client.Call("GET", "/live").result_int(), 200u);
  EXPECT_EQ(client.Call("GET", "/version").body(), R"({"version":"0.1.0"})");
}

TEST_F(OpenAiServerTest, WrongPathsMethodsAndTypes) {
  HttpTestClient client = Connect();
  const struct {
    const char* method;
    const char* path;
    unsigned status;
    const char* allow;
  } cases[] = {{"GET", "/", 404, ""},
               {"POST", "/v1/embeddings", 404, ""},
               {"GET", "/v1/modelsx", 404, ""},
               {"GET", "/v1/chat/completions", 405, "POST"},
               {"PUT", "/v1/completions", 405, "POST"},
               {"POST", "/v1/models", 405, "GET, HEAD"},
               {"DELETE", "/health", 405, "GET, HEAD"},
               {"OPTIONS", "/v1/chat/completions", 405, "POST"}};
  for (const auto& row : cases) {
    const HttpAnswer answer = client.Call(row.method, row.path, row.method[0] == 'P' ? "{}" : "");
    EXPECT_EQ(answer.result_int(), row.status) << row.method << " " << row.path;
    EXPECT_EQ(answer["Allow"], row.allow);
    EXPECT_TRUE(absl::StartsWith(answer.body(), R"({"error":{"message":")"));
  }
  client.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
      "text/plain\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.Read().result_int(), 415u);
  client.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\nContent-Length: "
      "2\r\n\r\n{}");
  EXPECT_EQ(client.Read().result_int(), 415u);
  client.Send(
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: Application/JSON; "
      "charset=utf-8\r\nContent-Length: 14\r\n\r\n"
      R"({"prompt":"A"})");
  EXPECT_EQ(client.Read().result_int(), 200u);
}

// One connection survives them all, and nothing reaches the backend.
TEST_F(OpenAiServerTest, BadRequestsLoseNothing) {
  HttpTestClient client = Connect();
  const std::string good = Body(R"("model":"toy","temperature":1,"stop":["x"],"stream":false)");
  for (size_t cut = 1; cut < good.size(); ++cut) {
    const HttpAnswer answer = client.Call("POST", kChat, good.substr(0, cut));
    EXPECT_EQ(answer.result_int(), 400u);
    EXPECT_TRUE(Has(answer.body(),
                    R"("type":"invalid_request_error","param":null,"code":"invalid_value"}})"))
        << answer.body();
  }
  for (int i = 0; i < 100; ++i) {
    const HttpAnswer answer = client.Call("POST", kChat, Body(absl::StrCat(R"("top_p":)", i + 2)));
    EXPECT_EQ(answer.result_int(), 400u);
    EXPECT_TRUE(Has(answer.body(), R"("param":"top_p")")) << answer.body();
  }
  EXPECT_EQ(backend_.generations.size(), 0u);
  client.Request("POST", kChat, good);
  const FakeGeneration generation = backend_.Next();
  generation.Start();
  generation.Token("ok", "stop");
  generation.End(1);
  EXPECT_EQ(client.Read().result_int(), 200u);
}

TEST_F(OpenAiServerTest, ShutdownCancelsWhatDoesNotEnd) {
  HttpTestClient client = Connect();
  client.Request("POST", kChat, Body(R"("stream":true)"), kId);
  const FakeGeneration generation = backend_.Next();
  server_->Shutdown(absl::Milliseconds(5));
  EXPECT_EQ(backend_.cancelled.TryPop(), "r1");
  server_.reset();
  EXPECT_TRUE(generation.Start());  // nobody listens any more
  EXPECT_FALSE(generation.Token("a"));
  generation.sink->OnEnd(absl::CancelledError("cancelled"));
}

TEST_F(OpenAiServerTest, ManyStreamsAtOnce) {
  constexpr int kStreams = 64;
  constexpr int kTokens = 50;
  std::thread router([this] {
    std::vector<FakeGeneration> all;
    for (int i = 0; i < kStreams; ++i) all.push_back(backend_.Next());
    for (const FakeGeneration& generation : all) generation.Start();
    for (int t = 0; t < kTokens; ++t) {
      for (const FakeGeneration& generation : all) {
        generation.Token(absl::StrCat(generation.request.messages().messages(0).content(), "."),
                         t + 1 == kTokens ? "stop" : "");
      }
    }
    for (const FakeGeneration& generation : all) generation.End(kTokens);
  });
  std::vector<std::unique_ptr<HttpTestClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<HttpTestClient>(server_->address()));
    clients.back()->Request(
        "POST", kChat,
        absl::StrReplaceAll(Body(R"("stream":true)"), {{"hello", absl::StrCat("<", i, ">")}}));
  }
  for (int i = 0; i < kStreams; ++i) {
    const HttpAnswer answer = clients[static_cast<size_t>(i)]->Read();
    size_t seen = 0;
    const std::string wanted = absl::StrCat("\"content\":\"<", i, ">.\"}");
    for (size_t at = answer.body().find(wanted); at != std::string::npos;
         at = answer.body().find(wanted, at + 1))
      ++seen;
    EXPECT_EQ(seen, static_cast<size_t>(kTokens));
    EXPECT_TRUE(absl::EndsWith(answer.body(), "data: [DONE]\n\n"));
  }
  router.join();
}

}  // namespace
}  // namespace sluice::http
