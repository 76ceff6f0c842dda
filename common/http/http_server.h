// An HTTP/1.1 server with limits: whole replies and streams, from any thread, over Asio.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace sluice::http {

class Exchange;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpServerOptions {
  std::string listen = "127.0.0.1:0";
  bool insecure_anywhere = false;  // may listen beyond loopback
  int threads = 1;
  // Over it the connection that has waited longest for its client is closed, or, where all of them
  // have an answer in progress, the new one gets 503.
  size_t connections_max = 1024;
  size_t header_bytes_max = 16 << 10;
  size_t header_lines_max = 64;
  size_t body_bytes_max = 4 << 20;
  size_t stream_bytes_max = 256 << 10;                // of one stream, waiting for a slow reader
  absl::Duration header_timeout = absl::Seconds(10);  // from the first byte (or the accept) on
  absl::Duration body_timeout = absl::Seconds(30);
  absl::Duration idle_timeout = absl::Seconds(60);   // between requests of a connection
  absl::Duration write_timeout = absl::Seconds(30);  // without any progress of the reader
};

// One request, read completely.
struct HttpRequest {
  std::string method;
  std::string path;   // as sent, up to '?'
  std::string query;  // what follows '?'
  HttpHeaders headers;
  std::string body;
  std::string request_id;  // the client's x-request-id when it is sane, else a fresh one
  absl::Time arrived;      // on the server's clock

  // The value of the first header of that name in any case; "" when there is none.
  absl::string_view header(absl::string_view name) const;
};

// Date, Content-Length, x-request-id and Connection are added by the server. Control characters in
// values become '?'.
struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
  std::string body = {};
};

// The answer to one request. Thread-safe; never blocks. May outlive the connection and the server:
// everything is ignored then. Destroyed without an answer, it answers 500; destroyed inside a
// stream, it aborts the connection.
class HttpResponder {
 public:
  explicit HttpResponder(std::shared_ptr<Exchange> exchange);
  ~HttpResponder();
  HttpResponder(const HttpResponder&) = delete;
  HttpResponder& operator=(const HttpResponder&) = delete;

  // Answers completely. Only the first Reply or BeginStream counts.
  void Reply(HttpReply reply);

  // Starts a stream; `head.body` is its first piece. These three return false when the client is
  // gone, or when more than stream_bytes_max wait for it, which aborts the connection.
  bool BeginStream(HttpReply head);
  bool Write(absl::string_view piece);
  bool EndStream();
  // Of a stream: what waits for the client to read.
  size_t backlog_bytes() const;
  // Closes the connection at once, so that the client cannot take what it has for the whole.
  void Abort();

  // Runs `gone` once, on a thread of the server, when the connection ends before the answer is
  // complete; at once and on this thread when that has happened already.
  void OnGone(std::function<void()> gone);
  // Runs `idle` on a thread of the server when nothing was sent for between one and two
  // `interval`s, again and again, until the answer is complete.
  void OnIdle(absl::Duration interval, std::function<void()> idle);

 private:
  const std::shared_ptr<Exchange> exchange_;
};

// Runs on a thread of the server; must not block.
using HttpHandler =
    std::function<void(HttpRequest request, std::shared_ptr<HttpResponder> responder)>;

// Since the start.
struct HttpServerStats {
  uint64_t connections = 0;  // accepted
  uint64_t connections_open = 0;
  uint64_t connections_refused = 0;  // over connections_max
  uint64_t connections_evicted = 0;  // closed in favour of a new one
  uint64_t requests = 0;             // given to the handler
  uint64_t refused = 0;             // answered by the server itself: malformed, too large, too slow
  uint64_t streams_overflowed = 0;  // cut for a slow reader
  uint64_t gone = 0;                // clients that left before their answer was complete
};

// Thread-safe.
class HttpServer {
 public:
  // Errors: those of rpc::CheckListen. `clock` must outlive the server and its responders.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpHandler handler, Clock& clock);
  virtual ~HttpServer() = default;  // Shutdown(0)

  // The bound "host:port".
  virtual const std::string& address() const = 0;
  // Accepts no more connections, closes those without a request at once and others after their
  // answer. Idempotent; returns at once.
  virtual void BeginShutdown() = 0;
  // The same, and lets running answers end for up to `grace`, closes the rest and joins.
  // Idempotent; not from a handler or callback.
  virtual void Shutdown(absl::Duration grace) = 0;
  virtual HttpServerStats stats() const = 0;
};

}  // namespace sluice::http
