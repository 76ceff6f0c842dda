#include "http/metrics_server.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "boost/asio/ip/tcp.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "rpc/listen.h"

namespace sluice::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using Request = bhttp::request<bhttp::empty_body>;
using Response = bhttp::response<bhttp::string_body>;

constexpr auto kTimeout = std::chrono::seconds(10);
constexpr uint32_t kHeaderBytesMax = 8 << 10;

// Everything runs on the server's one thread.
class Server final : public MetricsServer {
 public:
  Server(const MetricsServerOptions& options, MetricsSources sources)
      : options_(options), sources_(std::move(sources)), acceptor_(io_) {}
  ~Server() override {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen(const rpc::HostPort& where) {
    beast::error_code error;
    asio::ip::tcp::resolver resolver(io_);
    const auto found = resolver.resolve(where.host, std::to_string(where.port), error);
    if (!error && !found.empty()) {
      const asio::ip::tcp::endpoint endpoint = *found.begin();
      acceptor_.open(endpoint.protocol(), error);
      if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
      if (!error) acceptor_.bind(endpoint, error);
      if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    }
    if (error) return absl::UnavailableError(absl::StrCat("cannot listen on ", where.ToString(), ": ", error.message()));
    address_ = rpc::HostPort{where.host, acceptor_.local_endpoint().port()}.ToString();
    Accept();
    thread_ = std::thread([this] { io_.run(); });
    return absl::OkStatus();
  }
  const std::string& address() const override { return address_; }

 private:
  // One connection; lives as long as its pending operation.
  struct Session {
    Session(Server& s, asio::ip::tcp::socket socket) : server(s), stream(std::move(socket)) { ++server.connections_; }
    ~Session() { --server.connections_; }
    Server& server;
    beast::tcp_stream stream;
    beast::flat_buffer buffer{kHeaderBytesMax};
    std::optional<bhttp::request_parser<bhttp::empty_body>> parser;
    Response response;
  };

  void Accept() {
    acceptor_.async_accept([this](beast::error_code error, asio::ip::tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (!error && connections_ < options_.connections_max) Read(std::make_shared<Session>(*this, std::move(socket)));
      Accept();
    });
  }

  static void Read(const std::shared_ptr<Session>& session) {
    session->parser.emplace();
    session->parser->header_limit(kHeaderBytesMax);
    session->stream.expires_after(kTimeout);
    bhttp::async_read(session->stream, session->buffer, *session->parser,
                      [session](beast::error_code error, size_t) {
                        if (!error) session->server.Answer(session);
                      });
  }

  void Answer(const std::shared_ptr<Session>& session) {
    const Request& request = session->parser->get();
    Response response = ResponseTo(request);
    response.version(request.version());
    response.keep_alive(request.keep_alive());
    response.prepare_payload();
    session->response = std::move(response);
    session->stream.expires_after(kTimeout);
    bhttp::async_write(session->stream, session->response, [session](beast::error_code error, size_t) {
      if (!error && session->response.keep_alive()) Read(session);
    });
  }

  static Response Text(bhttp::status status, std::string body, const char* type = "text/plain; charset=utf-8") {
    Response response(status, 11);
    response.set(bhttp::field::content_type, type);
    response.set(bhttp::field::cache_control, "no-store");
    response.body() = std::move(body);
    return response;
  }

  static Response Probe(const absl::Status& status) {
    if (status.ok()) return Text(bhttp::status::ok, "ok\n");
    return Text(bhttp::status::service_unavailable, absl::StrCat(std::string(status.message()), "\n"));
  }

  Response ResponseTo(const Request& request) {
    if (request.method() != bhttp::verb::get) {
      Response response = Text(bhttp::status::method_not_allowed, "only GET\n");
      response.set(bhttp::field::allow, "GET");
      return response;
    }
    const auto path = request.target().substr(0, request.target().find('?'));
    if (path == "/metrics") return Text(bhttp::status::ok, sources_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    if (path == "/live" || path == "/health") return Probe(sources_.live());
    if (path == "/ready") return Probe(sources_.ready());
    return Text(bhttp::status::not_found, "try /metrics, /live, /ready or /health\n");
  }

  const MetricsServerOptions options_;
  MetricsSources sources_;
  size_t connections_ = 0;  // before io_: sessions that io_ still owns count down when it is destroyed
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  std::string address_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const MetricsServerOptions& options,
                                                                    MetricsSources sources) {
  SLUICE_ASSIGN_OR_RETURN(const rpc::HostPort where, rpc::CheckListen(options.listen, options.insecure_listen_anywhere));
  auto server = std::make_unique<Server>(options, std::move(sources));
  SLUICE_RETURN_IF_ERROR(server->Listen(where));
  return server;
}

}  // namespace sluice::http
