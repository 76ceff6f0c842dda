// One connection: reads requests one after the other, watches for the client's leaving, writes
// answers.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "boost/asio/any_io_executor.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "http/exchange.h"

namespace sluice::http {

// A timer that can be set again while it is about to fire. Owned by one strand.
class DeadlineTimer {
 public:
  explicit DeadlineTimer(const boost::asio::any_io_executor& executor) : timer_(executor) {}
  // Runs `expired` after `timeout` unless Arm or Disarm is called before.
  template <typename F>
  void Arm(absl::Duration timeout, F expired) {
    timer_.expires_after(absl::ToChronoNanoseconds(timeout));
    timer_.async_wait(
        [this, epoch = ++epoch_, expired = std::move(expired)](boost::system::error_code error) {
          if (!error && epoch == epoch_) expired();
        });
  }
  void Disarm() {
    ++epoch_;
    timer_.cancel();
  }

 private:
  boost::asio::steady_timer timer_;
  uint64_t epoch_ = 0;
};

// Everything runs on the socket's strand; the posts may come from any thread. Alive as long as an
// operation is pending.
//
// At most one read and one write are pending at any time. A read is pending in every state: while
// an answer is produced it notices that the client leaves, and what it brings of the next request
// waits in the buffer.
class Connection final : public ConnectionPort, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<ServerContext> context, boost::asio::ip::tcp::socket socket);
  ~Connection() override;

  // Serves the connection; with `refuse` set it is told that there are too many, and closed.
  void PostStart(bool refuse);
  // Any thread: closes when no answer is in progress.
  void PostDrain();
  // Any thread: closes unless an answer is in progress by then; another connection needs the place.
  void PostEvict();
  // Puts this connection behind all others that wait for their clients. On the strand, or before it
  // is started.
  void BeginWait();

  void PostFlush() override;
  void PostAbort() override;
  void PostIdleTimer(absl::Duration interval) override;

 private:
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class State {
    kIdle,    // waits for the first byte of a request
    kHeader,  // reads a header
    kBody,    // reads a body
    kAnswer,  // an exchange is in progress
    kLinger,  // the last answer is out; reads and drops, so that the client gets it before the
              // reset
    kClosed,
  };

  void Start(bool refuse);
  void ReadMore();
  void OnRead(Error error, size_t bytes);
  void NextRequest();
  void Parse();
  // False when the header is refused (and that was answered).
  bool CheckHeader();
  void SendContinue();
  void Dispatch();
  void RefuseParse(Error error);
  // Answers in place of the handler and ends the connection.
  void Refuse(int status, absl::string_view message,
              absl::string_view type = "invalid_request_error", absl::string_view code = {},
              HttpHeaders headers = {});

  void Flush();
  void WriteSome();
  void OnWritten(Error error, size_t bytes);
  void OnAnswered();
  void Linger();
  void Close();
  // Closes. Where an answer is cut off, with a reset: it reaches even a client that does not read,
  // and drops what the kernel still holds for it.
  void Abort();

  // The client has to do something: within `timeout`, and sooner when the place is needed.
  void SetDeadline(absl::Duration timeout);
  void ClearDeadline();
  void OnDeadline();
  void ArmIdleTimer(absl::Duration interval);

  const std::shared_ptr<ServerContext> context_;
  boost::asio::ip::tcp::socket socket_;
  DeadlineTimer deadline_;
  uint64_t wait_ = 0;  // in ServerContext::waiting; 0: does not wait. Guarded by its mutex
  DeadlineTimer write_deadline_;
  DeadlineTimer idle_timer_;
  // Apart from buffer_, which is consumed while a read is pending.
  std::array<char, 16 << 10> input_;
  boost::beast::flat_buffer buffer_;  // read and not parsed yet
  std::optional<Parser> parser_;
  State state_ = State::kHeader;
  bool reading_ = false;
  bool header_done_ = false;
  absl::Time arrived_;
  std::shared_ptr<Exchange> exchange_;
  bool writing_ = false;
  std::string output_;
  size_t written_ = 0;
};

}  // namespace sluice::http
