#include "http/http_server.h"

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "http/http_test_client.h"
#include "http/json_writer.h"

namespace sluice::http {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);  // only reached by a failing test

// Answers /echo with what it got; hands the responders of every other path to the test.
class HttpServerTest : public testing::Test {
 protected:
  struct Held {
    HttpRequest request;
    std::shared_ptr<HttpResponder> responder;
  };

  void Start(HttpServerOptions options = {}) {
    auto server = HttpServer::Start(
        options,
        [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          if (request.path == "/echo") {
            responder->Reply(
                {.content_type = "text/plain",
                 .body = absl::StrCat(request.method, "|", request.query, "|", request.body)});
          } else if (request.path != "/drop") {
            held_.TryPush({std::move(request), std::move(responder)});
          }
        },
        clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  HttpTestClient Connect(int receive_bytes = 0) {
    return HttpTestClient(server_->address(), receive_bytes);
  }
  Held NextHeld() {
    auto held = held_.PopFor(kLong);
    EXPECT_TRUE(held.has_value());
    return *std::move(held);
  }
  // Status of the answer to raw bytes, after which the connection must be closed; 0 for none.
  unsigned StatusOfRaw(absl::string_view raw) {
    HttpTestClient client = Connect();
    client.Send(raw);
    const HttpAnswer answer = client.Read();
    if (answer.result_int() >= 400) {
      EXPECT_TRUE(absl::StartsWith(answer.body(), R"({"error":{"message":")")) << answer.body();
      EXPECT_FALSE(answer["x-request-id"].empty());
      EXPECT_EQ(client.ReadAll(), "");
    }
    return answer.result_int();
  }

  SystemClock clock_;
  BoundedQueue<Held> held_{64};
  BoundedQueue<int> gone_{4};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersManyRequestsOfOneConnection) {
  Start();
  HttpTestClient client = Connect();
  HttpAnswer answer = client.Call("POST", "/echo?a=b", "hello", "x-request-id: my-id.1\r\n");
  EXPECT_EQ(answer.result_int(), 200u);
  EXPECT_EQ(answer.body(), "POST|a=b|hello");
  EXPECT_EQ(answer["x-request-id"], "my-id.1");
  EXPECT_FALSE(answer["Date"].empty());
  answer = client.Call("GET", "/echo", "", "x-request-id: in sane\r\n");
  EXPECT_EQ(answer.body(), "GET||");
  EXPECT_EQ(answer["x-request-id"].size(), 32u);
  EXPECT_EQ(server_->stats().connections, 1u);
  EXPECT_EQ(server_->stats().requests, 2u);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  HttpTestClient client = Connect();
  std::string text;
  for (int i = 0; i < 20; ++i)
    absl::StrAppend(&text, "GET /echo?", i, " HTTP/1.1\r\nHost: x\r\n\r\n");
  client.Send(text);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.Read().body(), absl::StrCat("GET|", i, "|"));
}

TEST_F(HttpServerTest, RequestsThatComeEarlyWait) {
  Start();
  HttpTestClient client = Connect();
  for (int i = 0; i < 50; ++i) {
    client.Request("GET", "/hold");
    const Held held = NextHeld();
    client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc");
    client.Send("def");
    client.Request("GET", absl::StrCat("/echo?", i));
    held.responder->Reply({.body = "held"});
    EXPECT_EQ(client.Read().body(), "held");
    EXPECT_EQ(client.Read().body(), "POST||abcdef");
    EXPECT_EQ(client.Read().body(), absl::StrCat("GET|", i, "|"));
  }
}

TEST_F(HttpServerTest, ReadsBodiesInPieces) {
  Start();
  HttpTestClient client = Connect();
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: "
      "100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  for (const char* piece : {"3\r", "\nabc\r\n2", "\r\nde", "\r\n0\r\n", "\r\n"}) client.Send(piece);
  EXPECT_EQ(client.Read().body(), "POST||abcde");
  const std::string big(3 << 20, 'x');
  EXPECT_EQ(client.Call("POST", "/echo", big).body().size(), big.size() + 6);
}

TEST_F(HttpServerTest, RefusesWhatIsMalformedOrTooLarge) {
  Start({.header_bytes_max = 4096, .header_lines_max = 20, .body_bytes_max = 100});
  const std::string many_lines = [] {
    std::string text;
    for (int i = 0; i < 30; ++i) absl::StrAppend(&text, "a", i, ": b\r\n");
    return text;
  }();
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  const std::pair<std::string, unsigned> cases[] = {
      {"complete nonsense\r\n\r\n", 400},
      {"GET /echo\r\n\r\n", 400},
      {"GET /echo HTTP/2.0\r\nHost: x\r\n\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400},
      {"GET /echo HTTP/1.1\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET http://x/echo HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nX: a\x01z\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n", 417},
      {post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {post + "Content-Length: 101\r\n\r\n", 413},
      {post + "Transfer-Encoding: chunked\r\n\r\n65\r\n" + std::string(101, 'x') + "\r\n0\r\n\r\n",
       413},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nX: " + std::string(5000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(5000, 'x'), 431},
      {"GET /echo HTTP/1.1\r\nHost: x\r\n" + many_lines + "\r\n", 431},
  };
  for (const auto& [raw, status] : cases) EXPECT_EQ(StatusOfRaw(raw), status) << raw.substr(0, 200);
  EXPECT_EQ(server_->stats().refused, std::size(cases));
  EXPECT_EQ(server_->stats().requests, 0u);
}

TEST_F(HttpServerTest, ClientsThatAreTooSlowAreCutOff) {
  const absl::Duration soon = absl::Milliseconds(20);
  Start({.header_timeout = soon, .body_timeout = soon, .idle_timeout = soon});
  EXPECT_EQ(StatusOfRaw("GET /echo HTTP/1.1\r\nHost"), 408u);
  EXPECT_EQ(StatusOfRaw("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"), 408u);
  EXPECT_EQ(StatusOfRaw(""), 0u);
  HttpTestClient client = Connect();
  EXPECT_EQ(client.Call("GET", "/echo").result_int(), 200u);
  EXPECT_EQ(client.ReadAll(), "");  // idle
}

TEST_F(HttpServerTest, TooManyConnectionsAreToldSo) {
  Start({.connections_max = 1});
  HttpTestClient first = Connect();
  first.Request("GET", "/hold");
  const Held held = NextHeld();
  HttpTestClient second = Connect();
  const HttpAnswer answer = second.Read();
  EXPECT_EQ(answer.result_int(), 503u);
  EXPECT_EQ(answer["Retry-After"], "1");
  EXPECT_EQ(second.ReadAll(), "");
  held.responder->Reply({});
  EXPECT_EQ(first.Read().result_int(), 200u);
  EXPECT_EQ(first.Call("GET", "/echo").result_int(), 200u);
  EXPECT_EQ(server_->stats().connections_refused, 1u);
}

TEST_F(HttpServerTest, WhoKeepsTheServerWaitingMakesRoomForOthers) {
  // Timeouts that no test waits for: only the need for a place closes these.
  Start({.connections_max = 4, .header_timeout = kLong, .body_timeout = kLong});
  HttpTestClient answering = Connect();
  answering.Request("GET", "/hold");
  const Held held = NextHeld();
  HttpTestClient silent = Connect();
  HttpTestClient idle = Connect();
  EXPECT_EQ(idle.Call("GET", "/echo").result_int(), 200u);
  HttpTestClient slow = Connect();
  slow.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\nab");
  EXPECT_EQ(slow.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  // In the order in which their waits began.
  std::deque<HttpTestClient> others;
  for (HttpTestClient* evicted : {&silent, &idle, &slow}) {
    others.emplace_back(server_->address());
    EXPECT_EQ(others.back().Call("GET", "/echo").result_int(), 200u);
    EXPECT_EQ(evicted->ReadAll(), "");
  }
  held.responder->Reply({});
  EXPECT_EQ(answering.Read().result_int(), 200u);
  EXPECT_EQ(server_->stats().connections_refused, 0u);
}

TEST_F(HttpServerTest, StreamsInChunks) {
  Start();
  HttpTestClient client = Connect();
  client.Request("GET", "/stream");
  const Held held = NextHeld();
  EXPECT_TRUE(held.responder->BeginStream(
      {.content_type = "text/event-stream", .headers = {{"X-A", "b\r\nEvil: 1"}}, .body = "one"}));
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_TRUE(absl::StrContains(head, "Transfer-Encoding: chunked\r\n")) << head;
  EXPECT_TRUE(absl::StrContains(head, "X-A: b??Evil: 1\r\n")) << head;
  EXPECT_EQ(client.ReadUntil("one\r\n"), "3\r\none\r\n");
  EXPECT_TRUE(held.responder->Write("two2"));
  EXPECT_EQ(client.ReadUntil("two2\r\n"), "4\r\ntwo2\r\n");
  EXPECT_TRUE(held.responder->EndStream());
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_FALSE(held.responder->Write("late"));
  client.Send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(absl::EndsWith(client.ReadUntil("GET||"), "GET||"));
}

TEST_F(HttpServerTest, OldClientsGetStreamsUntilTheClose) {
  Start();
  HttpTestClient client = Connect();
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  const Held held = NextHeld();
  EXPECT_TRUE(held.responder->BeginStream({.body = "one"}));
  EXPECT_TRUE(held.responder->Write("two"));
  EXPECT_TRUE(held.responder->EndStream());
  EXPECT_TRUE(absl::EndsWith(client.ReadAll(), "\r\n\r\nonetwo"));
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Start();
  HttpTestClient client = Connect();
  client.Send(
      "HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\nGET /echo HTTP/1.1\r\nHost: x\r\nConnection: "
      "close\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_TRUE(absl::StrContains(all, "Content-Length: 6\r\n\r\nHTTP/1.1 200")) << all;
}

TEST_F(HttpServerTest, NoticesThatTheClientLeftWhileNothingFlows) {
  Start();
  auto client = std::make_unique<HttpTestClient>(server_->address());
  client->Request("GET", "/wait");
  const Held held = NextHeld();
  held.responder->OnGone([this] { gone_.TryPush(1); });
  EXPECT_FALSE(gone_.TryPop().has_value());
  client.reset();
  EXPECT_TRUE(gone_.PopFor(kLong).has_value());
  held.responder->OnGone([this] { gone_.TryPush(2); });  // at once
  EXPECT_EQ(gone_.TryPop(), 2);
  EXPECT_FALSE(held.responder->BeginStream({}));
  held.responder->Reply({});
  EXPECT_EQ(server_->stats().gone, 1u);
}

TEST_F(HttpServerTest, SlowReaderIsCutOff) {
  Start({.stream_bytes_max = 10000});
  HttpTestClient client = Connect(4096);
  client.Request("GET", "/stream");
  const Held held = NextHeld();
  held.responder->OnGone([this] { gone_.TryPush(1); });
  EXPECT_TRUE(held.responder->BeginStream({}));
  const std::string piece(1000, 'x');
  size_t pieces = 0;
  while (held.responder->Write(piece)) ++pieces;
  EXPECT_LT(pieces, 4000u);  // what the kernel holds is bounded too
  EXPECT_TRUE(gone_.PopFor(kLong).has_value());
  EXPECT_EQ(server_->stats().streams_overflowed, 1u);
  EXPECT_TRUE(client.WaitForReset()) << "a client that does not read hears nothing of the end";
  EXPECT_FALSE(absl::EndsWith(client.ReadAll(), "0\r\n\r\n"));
}

TEST_F(HttpServerTest, ReaderThatStopsIsCutOff) {
  Start({.stream_bytes_max = 64 << 20, .write_timeout = absl::Milliseconds(20)});
  HttpTestClient client = Connect(4096);
  client.Request("GET", "/stream");
  const Held held = NextHeld();
  held.responder->OnGone([this] { gone_.TryPush(1); });
  EXPECT_TRUE(held.responder->BeginStream({.body = std::string(32 << 20, 'x')}));
  EXPECT_TRUE(gone_.PopFor(kLong).has_value());
  EXPECT_TRUE(client.WaitForReset());
}

TEST_F(HttpServerTest, ForgottenAnswersAreErrors) {
  Start();
  HttpTestClient client = Connect();
  EXPECT_EQ(client.Call("GET", "/drop").result_int(), 500u);
  client.Request("GET", "/stream");
  {
    const Held held = NextHeld();
    EXPECT_TRUE(held.responder->BeginStream({.body = "one"}));
    EXPECT_EQ(client.ReadUntil("one\r\n").substr(0, 8), "HTTP/1.1");
  }
  EXPECT_EQ(client.ReadAll(), "");  // closed without the last chunk
}

TEST_F(HttpServerTest, IdleCallbackRunsWhileNothingIsSent) {
  Start();
  HttpTestClient client = Connect();
  client.Request("GET", "/stream");
  const Held held = NextHeld();
  held.responder->OnIdle(absl::Milliseconds(5), [responder = held.responder.get()] {
    responder->BeginStream({});
    responder->Write("ping");
  });
  client.ReadUntil("\r\n\r\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ReadUntil("ping\r\n"), "4\r\nping\r\n");
  held.responder->Abort();
  client.ReadAll();
}

TEST_F(HttpServerTest, ShutdownLetsAnswersEnd) {
  Start();
  HttpTestClient idle = Connect();
  EXPECT_EQ(idle.Call("GET", "/echo").result_int(), 200u);
  HttpTestClient client = Connect();
  client.Request("GET", "/stream");
  Held held = NextHeld();
  EXPECT_TRUE(held.responder->BeginStream({.body = "one"}));
  std::thread shutdown([this] { server_->Shutdown(kLong); });
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_TRUE(held.responder->Write("two"));
  EXPECT_TRUE(held.responder->EndStream());
  EXPECT_TRUE(absl::EndsWith(client.ReadAll(), "3\r\ntwo\r\n0\r\n\r\n"));
  client.Close();
  idle.Close();
  shutdown.join();
  EXPECT_EQ(server_->stats().connections_open, 0u);
}

TEST_F(HttpServerTest, ShutdownCutsWhatDoesNotEnd) {
  Start();
  HttpTestClient client = Connect();
  client.Request("GET", "/stream");
  const Held held = NextHeld();
  held.responder->OnGone([this] { gone_.TryPush(1); });
  server_->Shutdown(absl::Milliseconds(5));
  EXPECT_TRUE(gone_.TryPop().has_value());
  EXPECT_EQ(client.ReadAll(), "");
  server_.reset();
  EXPECT_FALSE(held.responder->BeginStream({}));  // outlives the server
  held.responder->Reply({});
}

TEST_F(HttpServerTest, PortInUseIsAnError) {
  Start();
  const auto second = HttpServer::Start(
      {.listen = server_->address()}, [](HttpRequest, std::shared_ptr<HttpResponder>) {}, clock_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  const auto anywhere = HttpServer::Start(
      {.listen = "0.0.0.0:0"}, [](HttpRequest, std::shared_ptr<HttpResponder>) {}, clock_);
  EXPECT_EQ(anywhere.status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(JsonWriterTest, EscapesAndSeparates) {
  JsonWriter json;
  json.BeginObject()
      .Key("a\"")
      .String("x\n\x01\\\xff\xc3\xa9")
      .Key("b")
      .BeginArray()
      .Int(-1)
      .Number(0.5)
      .Null()
      .EndArray();
  json.Key("c")
      .Bool(true)
      .Key("d")
      .BeginObject()
      .EndObject()
      .Key("e")
      .Number(-1.0 / 0.0)
      .EndObject();
  EXPECT_EQ(json.Take(), R"({"a\"":"x\n\u0001\\)"
                         "\xEF\xBF\xBD\xc3\xa9"
                         R"(","b":[-1,0.5,null],"c":true,"d":{},"e":-9999})");
}

}  // namespace
}  // namespace sluice::http
