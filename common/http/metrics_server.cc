#include "http/metrics_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "http/http_server.h"

namespace sluice::http {
namespace {

// A scraper or probe sends its few lines at once.
constexpr absl::Duration kHeaderTimeout = absl::Seconds(2);

class Server final : public MetricsServer {
 public:
  explicit Server(MetricsSources sources) : sources_(std::move(sources)) {}
  ~Server() override { server_.reset(); }  // before what its handler uses

  absl::Status Listen(const MetricsServerOptions& options) {
    HttpServerOptions http;
    http.listen = options.listen;
    http.insecure_anywhere = options.insecure_listen_anywhere;
    http.connections_max = options.connections_max;
    http.header_bytes_max = 8 << 10;
    http.body_bytes_max = 0;
    http.header_timeout = kHeaderTimeout;
    const auto handler = [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      responder->Reply(Answer(request));
    };
    SLUICE_ASSIGN_OR_RETURN(server_, HttpServer::Start(http, handler, clock_));
    return absl::OkStatus();
  }
  const std::string& address() const override { return server_->address(); }

 private:
  static HttpReply Text(int status, std::string body,
                        const char* type = "text/plain; charset=utf-8") {
    return {.status = status,
            .content_type = type,
            .headers = {{"Cache-Control", "no-store"}},
            .body = std::move(body)};
  }
  static HttpReply Probe(const absl::Status& status) {
    return status.ok() ? Text(200, "ok\n") : Text(503, absl::StrCat(status.message(), "\n"));
  }

  // On the server's one thread.
  HttpReply Answer(const HttpRequest& request) {
    if (request.method != "GET" && request.method != "HEAD") {
      HttpReply reply = Text(405, "only GET\n");
      reply.headers.emplace_back("Allow", "GET, HEAD");
      return reply;
    }
    if (request.path == "/metrics")
      return Text(200, sources_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    if (request.path == "/live" || request.path == "/health") return Probe(sources_.live());
    if (request.path == "/ready") return Probe(sources_.ready());
    return Text(404, "try /metrics, /live, /ready or /health\n");
  }

  SystemClock clock_;
  MetricsSources sources_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const MetricsServerOptions& options, MetricsSources sources) {
  auto server = std::make_unique<Server>(std::move(sources));
  SLUICE_RETURN_IF_ERROR(server->Listen(options));
  return server;
}

}  // namespace sluice::http
