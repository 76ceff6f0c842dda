#include "http/http_server.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/strand.hpp"
#include "http/connection.h"
#include "http/exchange.h"
#include "rpc/listen.h"

namespace sluice::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

// Connections that are told that there are too many; beyond them new ones are closed without a
// word.
constexpr size_t kRefusalsMax = 64;
// After an accept failed, for lack of descriptors as a rule.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

class AsioServer final : public HttpServer {
 public:
  AsioServer(const HttpServerOptions& options, HttpHandler handler, Clock& clock)
      : context_(std::make_shared<ServerContext>(options, std::move(handler), clock)),
        acceptor_(asio::make_strand(io_)),
        accept_pause_(acceptor_.get_executor()) {}
  ~AsioServer() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const rpc::HostPort& where);
  const std::string& address() const override { return address_; }
  void BeginShutdown() override;
  void Shutdown(absl::Duration grace) override;
  HttpServerStats stats() const override;

 private:
  void Accept();
  void Serve(tcp::socket socket);
  std::vector<std::shared_ptr<Connection>> OpenConnections() const;
  // Waits until no connection is left; false when `timeout` ran out first.
  bool WaitForNone(absl::Duration timeout);
  void OnAcceptFailed(Error error);

  const std::shared_ptr<ServerContext> context_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  tcp::acceptor acceptor_;
  DeadlineTimer accept_pause_;
  bool accept_fails_ = false;  // on the acceptor's strand
  std::string address_;
  Mutex shutdown_mutex_;  // one Shutdown at a time
  std::vector<std::thread> threads_;
};

absl::Status AsioServer::Listen(const rpc::HostPort& where) {
  Error error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(where.host, absl::StrCat(where.port), error);
  if (!error && !found.empty()) {
    const tcp::endpoint endpoint = *found.begin();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error)
      address_ = rpc::HostPort{where.host, acceptor_.local_endpoint(error).port()}.ToString();
  }
  if (error)
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", where.ToString(), ": ", error.message()));
  Accept();
  for (int i = 0; i < context_->options.threads; ++i) {
    threads_.emplace_back([this] { io_.run(); });
  }
  return absl::OkStatus();
}

void AsioServer::Accept() {
  acceptor_.async_accept(asio::make_strand(io_), [this](Error error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (error) return OnAcceptFailed(error);
    if (std::exchange(accept_fails_, false))
      SLUICE_LOG(kInfo) << "connections are accepted again" << Field("address", address_);
    Serve(std::move(socket));
    Accept();
  });
}

// Told once, however long it lasts.
void AsioServer::OnAcceptFailed(Error error) {
  if (!std::exchange(accept_fails_, true)) {
    SLUICE_LOG(kWarning) << "cannot accept connections; trying again" << Field("address", address_)
                         << Field("every", kAcceptPause) << Field("error", error.message());
  }
  accept_pause_.Arm(kAcceptPause, [this] { Accept(); });
}

void AsioServer::Serve(tcp::socket socket) {
  ++context_->accepted;
  const auto connection = std::make_shared<Connection>(context_, std::move(socket));
  const size_t connections_max = context_->options.connections_max;
  size_t open = 0;
  std::shared_ptr<Connection> evicted;
  {
    MutexLock lock(context_->mutex);
    context_->connections.emplace(connection.get(), connection);
    open = context_->connections.size();
    auto& waiting = context_->waiting;
    while (open > connections_max && evicted == nullptr && !waiting.empty()) {
      evicted = waiting.begin()->second.lock();
      waiting.erase(waiting.begin());
    }
  }
  if (evicted != nullptr) evicted->PostEvict();
  const bool refuse = open > connections_max && evicted == nullptr;
  if (refuse) ++context_->connections_refused;
  if (refuse && open > connections_max + kRefusalsMax) return;
  connection->BeginWait();
  connection->PostStart(refuse);
}

std::vector<std::shared_ptr<Connection>> AsioServer::OpenConnections() const {
  std::vector<std::shared_ptr<Connection>> open;
  MutexLock lock(context_->mutex);
  for (const auto& [key, weak] : context_->connections) {
    if (auto connection = weak.lock()) open.push_back(std::move(connection));
  }
  return open;
}

bool AsioServer::WaitForNone(absl::Duration timeout) {
  MutexLock lock(context_->mutex);
  while (!context_->connections.empty()) {
    if (!context_->none_left.WaitFor(context_->mutex, timeout))
      return context_->connections.empty();
  }
  return true;
}

void AsioServer::BeginShutdown() {
  if (context_->draining.exchange(true)) return;
  asio::post(acceptor_.get_executor(), [this] {
    Error ignored;
    acceptor_.close(ignored);
    accept_pause_.Disarm();
  });
  for (const auto& connection : OpenConnections()) connection->PostDrain();
}

void AsioServer::Shutdown(absl::Duration grace) {
  MutexLock lock(shutdown_mutex_);
  if (threads_.empty()) return;
  BeginShutdown();
  if (grace <= absl::ZeroDuration() || !WaitForNone(grace)) {
    for (const auto& connection : OpenConnections()) connection->PostAbort();
  }
  // Ends when the last operation has: everything is closed by now.
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

HttpServerStats AsioServer::stats() const {
  HttpServerStats stats;
  stats.connections = context_->accepted;
  stats.connections_refused = context_->connections_refused;
  stats.connections_evicted = context_->connections_evicted;
  stats.requests = context_->requests;
  stats.refused = context_->refused;
  stats.streams_overflowed = context_->overflowed;
  stats.gone = context_->gone;
  MutexLock lock(context_->mutex);
  stats.connections_open = context_->connections.size();
  return stats;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpHandler handler, Clock& clock) {
  SLUICE_ASSIGN_OR_RETURN(const rpc::HostPort where,
                          rpc::CheckListen(options.listen, options.insecure_anywhere));
  auto server = std::make_unique<AsioServer>(options, std::move(handler), clock);
  SLUICE_RETURN_IF_ERROR(server->Listen(where));
  return server;
}

}  // namespace sluice::http
