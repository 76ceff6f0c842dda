#include "http/metrics_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "boost/asio/connect.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/write.hpp"
#include "gtest/gtest.h"
#include "rpc/listen.h"

namespace sluice::http {
namespace {

namespace asio = boost::asio;

class MetricsServerTest : public testing::Test {
 protected:
  MetricsServerTest() {
    auto server = MetricsServer::Start({.connections_max = 2},
                                       {[] { return std::string("sluice_x 1\n"); },
                                        [this] { return live_; }, [this] { return ready_; }});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<asio::ip::tcp::socket> Connect() {
    auto socket = std::make_unique<asio::ip::tcp::socket>(io_);
    const auto where = *rpc::ParseHostPort(server_->address());
    socket->connect({asio::ip::make_address(where.host), where.port});
    return socket;
  }

  // Sends raw bytes and reads until the server closes.
  std::string Exchange(const std::string& text) {
    auto socket = Connect();
    asio::write(*socket, asio::buffer(text));
    std::string answer;
    boost::system::error_code error;
    asio::read(*socket, asio::dynamic_buffer(answer), error);
    return answer;
  }
  std::string Get(const std::string& path) {
    return Exchange("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }

  asio::io_context io_;
  absl::Status live_;
  absl::Status ready_ = absl::UnavailableError("loading the model");
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesMetricsAndProbes) {
  const std::string metrics = Get("/metrics?x=1");
  EXPECT_TRUE(absl::StartsWith(metrics, "HTTP/1.1 200")) << metrics;
  EXPECT_TRUE(absl::StrContains(metrics, "text/plain; version=0.0.4"));
  EXPECT_TRUE(absl::EndsWith(metrics, "sluice_x 1\n"));
  EXPECT_TRUE(absl::StartsWith(Get("/live"), "HTTP/1.1 200"));
  EXPECT_TRUE(absl::StartsWith(Get("/health"), "HTTP/1.1 200"));
  const std::string ready = Get("/ready");
  EXPECT_TRUE(absl::StartsWith(ready, "HTTP/1.1 503")) << ready;
  EXPECT_TRUE(absl::EndsWith(ready, "loading the model\n"));
}

TEST_F(MetricsServerTest, RefusesEverythingElse) {
  EXPECT_TRUE(absl::StartsWith(Get("/nothing"), "HTTP/1.1 404"));
  EXPECT_TRUE(
      absl::StartsWith(Exchange("DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
                       "HTTP/1.1 405"));
  EXPECT_TRUE(absl::StartsWith(Exchange("complete nonsense\r\n\r\n"), "HTTP/1.1 400"));
  EXPECT_TRUE(absl::StartsWith(
      Exchange("GET /metrics HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n"),
      "HTTP/1.1 431"));
  EXPECT_TRUE(absl::StartsWith(
      Exchange("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"), "HTTP/1.1 413"));
}

TEST_F(MetricsServerTest, HalfOpenConnectionsKeepNobodyOut) {
  std::vector<std::unique_ptr<asio::ip::tcp::socket>> half_open;
  for (int i = 0; i < 300; ++i) {
    half_open.push_back(Connect());
    if (i % 2 == 0) asio::write(*half_open.back(), asio::buffer(std::string("GET /metr")));
    if (i % 100 == 50) {
      EXPECT_TRUE(absl::StartsWith(Get("/live"), "HTTP/1.1 200"));
    }
  }
  EXPECT_TRUE(absl::EndsWith(Get("/metrics"), "sluice_x 1\n"));
}

}  // namespace
}  // namespace sluice::http
