#include "http/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/request_id.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/http/error.hpp"
#include "boost/beast/http/rfc7230.hpp"
#include "http/error_body.h"

namespace sluice::http {
namespace {

namespace asio = boost::asio;
namespace bhttp = boost::beast::http;

// Requests that may wait behind the one in progress, in bytes; beyond it nothing is read.
constexpr size_t kPipelineBytesMax = 16 << 10;
// Bytes that the kernel may hold unsent: without it megabytes pass before a slow reader is noticed.
constexpr int kUnsentBytesMax = 128 << 10;
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::string_view HttpRequest::header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return "";
}

Connection::Connection(std::shared_ptr<ServerContext> context, asio::ip::tcp::socket socket)
    : context_(std::move(context)),
      socket_(std::move(socket)),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      idle_timer_(socket_.get_executor()) {}

Connection::~Connection() {
  if (exchange_ != nullptr) exchange_->Detach();
  MutexLock lock(context_->mutex);
  context_->connections.erase(this);
  context_->waiting.erase(wait_);
  if (context_->connections.empty()) context_->none_left.NotifyAll();
}

void Connection::PostStart(bool refuse) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), refuse] { self->Start(refuse); });
}

void Connection::Start(bool refuse) {
  if (state_ == State::kClosed || context_->draining) return Close();
  Error ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytesMax,
             sizeof(kUnsentBytesMax));
  if (refuse) {
    return Refuse(503,
                  absl::StrCat("too many connections, at most ", context_->options.connections_max,
                               "; try again soon"),
                  "service_unavailable_error", "server_is_overloaded",
                  {{"Retry-After", "1"}, {"x-should-retry", "true"}});
  }
  NextRequest();
  state_ = State::kHeader;  // the first header is due from the accept on
  SetDeadline(context_->options.header_timeout);
}

void Connection::PostFlush() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->Flush(); });
}

void Connection::PostAbort() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->Abort(); });
}

void Connection::PostIdleTimer(absl::Duration interval) {
  asio::post(socket_.get_executor(),
             [self = shared_from_this(), interval] { self->ArmIdleTimer(interval); });
}

void Connection::PostDrain() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kIdle ||
        (self->state_ == State::kHeader && self->buffer_.size() == 0))
      self->Close();
  });
}

void Connection::PostEvict() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kAnswer || self->state_ == State::kClosed) return;
    ++self->context_->connections_evicted;
    self->Close();
  });
}

void Connection::BeginWait() {
  MutexLock lock(context_->mutex);
  context_->waiting.erase(wait_);
  wait_ = ++context_->waits_begun;
  context_->waiting.emplace(wait_, weak_from_this());
}

void Connection::NextRequest() {
  exchange_.reset();
  header_done_ = false;
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(context_->options.header_bytes_max));
  parser_->body_limit(context_->options.body_bytes_max);
  if (buffer_.size() == 0) {
    state_ = State::kIdle;
    SetDeadline(context_->options.idle_timeout);
    return ReadMore();
  }
  state_ = State::kHeader;
  arrived_ = context_->clock.Now();
  SetDeadline(context_->options.header_timeout);
  Parse();
}

void Connection::ReadMore() {
  if (reading_ || state_ == State::kClosed) return;
  reading_ = true;
  socket_.async_read_some(
      asio::buffer(input_),
      [self = shared_from_this()](Error error, size_t bytes) { self->OnRead(error, bytes); });
}

void Connection::OnRead(Error error, size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (error) return Close();
  if (buffer_.size() == 0 && !header_done_) arrived_ = context_->clock.Now();
  buffer_.commit(asio::buffer_copy(buffer_.prepare(bytes), asio::buffer(input_, bytes)));
  switch (state_) {
    case State::kIdle:
      state_ = State::kHeader;
      SetDeadline(context_->options.header_timeout);
      return Parse();
    case State::kHeader:
    case State::kBody:
      return Parse();
    case State::kAnswer:
      if (buffer_.size() < kPipelineBytesMax) ReadMore();
      return;
    case State::kLinger:
      buffer_.consume(buffer_.size());
      return ReadMore();
    case State::kClosed:
      return;
  }
}

void Connection::Parse() {
  while (buffer_.size() > 0 && !parser_->is_done()) {
    Error error;
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error == bhttp::error::need_more) break;
    if (error) return RefuseParse(error);
    if (used == 0) break;
  }
  if (!header_done_ && parser_->is_header_done()) {
    header_done_ = true;
    if (!CheckHeader()) return;
    if (!parser_->is_done()) {
      state_ = State::kBody;
      SetDeadline(context_->options.body_timeout);
      if (absl::EqualsIgnoreCase(View(parser_->get()[bhttp::field::expect]), "100-continue"))
        SendContinue();
    }
  }
  if (parser_->is_done()) return Dispatch();
  ReadMore();
}

void Connection::RefuseParse(Error error) {
  const HttpServerOptions& options = context_->options;
  if (error == bhttp::error::header_limit) {
    return Refuse(431,
                  absl::StrCat("the header has more than ", options.header_bytes_max, " bytes"));
  }
  if (error == bhttp::error::body_limit) {
    return Refuse(413, absl::StrCat("the body has more than ", options.body_bytes_max, " bytes"));
  }
  if (error == bhttp::error::bad_version) return Refuse(505, "this server speaks HTTP/1.1");
  Refuse(400, absl::StrCat("malformed HTTP: ", error.message()));
}

bool Connection::CheckHeader() {
  const auto& message = parser_->get();
  const auto lines = static_cast<size_t>(std::distance(message.begin(), message.end()));
  const auto refuse = [this](int status, absl::string_view why) {
    Refuse(status, why);
    return false;
  };
  if (lines > context_->options.header_lines_max) {
    return refuse(431, absl::StrCat("the header has ", lines, " lines; at most ",
                                    context_->options.header_lines_max));
  }
  // What two parties could read differently is refused: it is how requests are smuggled past a
  // proxy.
  if (message.count(bhttp::field::content_length) > 1 ||
      !absl::c_all_of(View(message[bhttp::field::content_length]), absl::ascii_isdigit)) {
    return refuse(400, "Content-Length must be one number");
  }
  if (message.count(bhttp::field::transfer_encoding) > 0) {
    if (message.count(bhttp::field::content_length) > 0)
      return refuse(400, "both Transfer-Encoding and Content-Length");
    if (!parser_->chunked() ||
        !absl::EqualsIgnoreCase(View(message[bhttp::field::transfer_encoding]), "chunked")) {
      return refuse(501, "the only Transfer-Encoding supported is chunked");
    }
  }
  const size_t hosts = message.count(bhttp::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() == 11))
    return refuse(400, "a request has exactly one Host");
  if (message.target().empty() || message.target().front() != '/')
    return refuse(400, "the target must begin with '/'");
  const auto expect = View(message[bhttp::field::expect]);
  if (!expect.empty() && !absl::EqualsIgnoreCase(expect, "100-continue"))
    return refuse(417, "unknown Expect");
  return true;
}

void Connection::SendContinue() {
  if (writing_) return;
  static constexpr absl::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  writing_ = true;
  asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](Error error, size_t) {
                      self->writing_ = false;
                      if (error) return self->Close();
                      if (self->exchange_ != nullptr) self->Flush();
                    });
}

void Connection::Dispatch() {
  auto message = parser_->release();
  HttpRequest request;
  request.arrived = arrived_;
  request.method = std::string(View(message.method_string()));
  const absl::string_view target = View(message.target());
  const size_t question = std::min(target.find('?'), target.size());
  request.path = std::string(target.substr(0, question));
  if (question < target.size()) request.query = std::string(target.substr(question + 1));
  for (const auto& field : message) {
    request.headers.emplace_back(std::string(View(field.name_string())),
                                 std::string(View(field.value())));
  }
  request.body = std::move(message.body());
  const absl::string_view id = request.header("x-request-id");
  request.request_id = IsRequestId(id) ? std::string(id) : context_->random.NextId128().ToHex();

  state_ = State::kAnswer;
  ClearDeadline();
  ++context_->requests;
  exchange_ = std::make_shared<Exchange>(
      context_,
      Framing{request.request_id, message.version() == 10, message.method() == bhttp::verb::head,
              message.keep_alive()},
      this);
  if (buffer_.size() == 0) buffer_ = {};  // a large body's memory is not kept
  if (buffer_.size() < kPipelineBytesMax) ReadMore();
  context_->handler(std::move(request), std::make_shared<HttpResponder>(exchange_));
}

void Connection::Refuse(int status, absl::string_view message, absl::string_view type,
                        absl::string_view code, HttpHeaders headers) {
  ++context_->refused;
  state_ = State::kAnswer;
  ClearDeadline();
  buffer_.consume(buffer_.size());
  exchange_ = std::make_shared<Exchange>(
      context_, Framing{.request_id = context_->random.NextId128().ToHex(), .keep_alive = false},
      this);
  exchange_->Reply({.status = status,
                    .headers = std::move(headers),
                    .body = ErrorBody({.message = message, .type = type, .code = code})});
}

void Connection::Flush() {
  if (state_ != State::kAnswer || writing_ || exchange_ == nullptr) return;
  output_ = exchange_->Take();
  written_ = 0;
  if (!output_.empty()) return WriteSome();
  if (exchange_->Complete()) OnAnswered();
}

// Piece by piece, so that every piece the reader takes renews the deadline.
void Connection::WriteSome() {
  writing_ = true;
  write_deadline_.Arm(context_->options.write_timeout,
                      [self = shared_from_this()] { self->Abort(); });
  socket_.async_write_some(
      asio::buffer(output_.data() + written_, output_.size() - written_),
      [self = shared_from_this()](Error error, size_t bytes) { self->OnWritten(error, bytes); });
}

void Connection::OnWritten(Error error, size_t bytes) {
  writing_ = false;
  write_deadline_.Disarm();
  if (state_ == State::kClosed) return;
  if (error) return Close();
  written_ += bytes;
  if (written_ < output_.size()) return WriteSome();
  Flush();
}

void Connection::OnAnswered() {
  const bool keep_alive = exchange_->KeepAlive() && !context_->draining;
  exchange_->Detach();
  exchange_.reset();
  idle_timer_.Disarm();
  if (!keep_alive) return Linger();
  NextRequest();
}

void Connection::Linger() {
  state_ = State::kLinger;
  Error ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  SetDeadline(kLingerTimeout);
  ReadMore();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  Error ignored;
  socket_.close(ignored);
  ClearDeadline();
  write_deadline_.Disarm();
  idle_timer_.Disarm();
  if (exchange_ != nullptr) exchange_->Detach();
  exchange_.reset();
}

void Connection::Abort() {
  Error ignored;
  if (state_ == State::kAnswer) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  Close();
}

void Connection::SetDeadline(absl::Duration timeout) {
  BeginWait();
  deadline_.Arm(timeout, [self = shared_from_this()] { self->OnDeadline(); });
}

void Connection::ClearDeadline() {
  deadline_.Disarm();
  MutexLock lock(context_->mutex);
  context_->waiting.erase(std::exchange(wait_, 0));
}

void Connection::OnDeadline() {
  switch (state_) {
    case State::kHeader:
      if (buffer_.size() == 0) return Close();
      return Refuse(408, absl::StrCat("the header was not complete after ",
                                      absl::FormatDuration(context_->options.header_timeout)));
    case State::kBody:
      return Refuse(408, absl::StrCat("the body was not complete after ",
                                      absl::FormatDuration(context_->options.body_timeout)));
    case State::kIdle:
    case State::kLinger:
      return Close();
    case State::kAnswer:
    case State::kClosed:
      return;
  }
}

void Connection::ArmIdleTimer(absl::Duration interval) {
  if (state_ != State::kAnswer) return;
  idle_timer_.Arm(interval, [self = shared_from_this(), interval] {
    if (self->exchange_ != nullptr && self->exchange_->OnIdleTimer()) self->ArmIdleTimer(interval);
  });
}

}  // namespace sluice::http
