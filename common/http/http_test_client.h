// A blocking client for tests: raw bytes out, bytes or parsed answers in.
#pragma once

#include <poll.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/read_until.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/read.hpp"
#include "boost/beast/http/string_body.hpp"
#include "rpc/listen.h"

namespace sluice::http {

using HttpAnswer = boost::beast::http::response<boost::beast::http::string_body>;

class HttpTestClient {
 public:
  // `receive_bytes`: size of the kernel's receive buffer, 0 for its default.
  explicit HttpTestClient(const std::string& address, int receive_bytes = 0) : socket_(io_) {
    const auto where = *rpc::ParseHostPort(address);
    const boost::asio::ip::tcp::endpoint endpoint(boost::asio::ip::make_address(where.host),
                                                  where.port);
    socket_.open(endpoint.protocol());
    if (receive_bytes > 0)
      socket_.set_option(boost::asio::socket_base::receive_buffer_size(receive_bytes));
    socket_.connect(endpoint);
  }

  // Errors are ignored: the server may have closed, which the answer shows.
  void Send(absl::string_view text) {
    boost::system::error_code ignored;
    boost::asio::write(socket_, boost::asio::buffer(text.data(), text.size()), ignored);
  }
  // A request with a Host and, unless `body` is empty, a JSON body.
  void Request(absl::string_view method, absl::string_view target, absl::string_view body = "",
               absl::string_view headers = "") {
    std::string text = absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: test\r\n", headers);
    if (!body.empty())
      absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", body.size(),
                      "\r\n");
    Send(absl::StrCat(text, "\r\n", body));
  }
  // One complete answer; status 0 when the server closed instead.
  HttpAnswer Read() {
    boost::beast::http::response_parser<boost::beast::http::string_body> parser;
    parser.body_limit(64 << 20);
    boost::system::error_code error;
    boost::beast::http::read(socket_, buffer_, parser, error);
    if (!error) return parser.release();
    HttpAnswer none;
    none.result(0u);
    return none;
  }
  HttpAnswer Call(absl::string_view method, absl::string_view target, absl::string_view body = "",
                  absl::string_view headers = "") {
    Request(method, target, body, headers);
    return Read();
  }
  // Raw bytes up to and including `end`, or all until the server closed.
  std::string ReadUntil(absl::string_view end) {
    boost::system::error_code error;
    const std::string wanted(end);
    const size_t bytes =
        boost::asio::read_until(socket_, boost::asio::dynamic_buffer(raw_), wanted, error);
    if (error) return std::exchange(raw_, {});
    const std::string text = raw_.substr(0, bytes);
    raw_.erase(0, bytes);
    return text;
  }
  std::string ReadAll() {
    boost::system::error_code error;
    boost::asio::read(socket_, boost::asio::dynamic_buffer(raw_), error);
    return std::exchange(raw_, {});
  }
  void Close() { socket_.close(); }
  // Waits, without reading, for the server to reset the connection; false when it does not.
  bool WaitForReset() {
    pollfd events{socket_.native_handle(), 0, 0};
    return poll(&events, 1, 60000) == 1 && (events.revents & POLLERR) != 0;
  }

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::string raw_;
};

}  // namespace sluice::http
