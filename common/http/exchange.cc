#include "http/exchange.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "boost/beast/http/status.hpp"
#include "http/error_body.h"

namespace sluice::http {
namespace {

// Nothing that could end a header line or is not ASCII.
std::string HeaderValue(absl::string_view value) {
  std::string clean(value);
  for (char& c : clean) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return clean;
}

void AppendHeader(absl::string_view name, absl::string_view value, std::string* out) {
  absl::StrAppend(out, name, ": ", HeaderValue(value), "\r\n");
}

}  // namespace

void Exchange::AppendHead(const HttpReply& reply, bool whole) {
  const bool chunked = !whole && !framing_.http10;
  if (!whole && framing_.http10) framing_.keep_alive = false;
  if (context_->draining) framing_.keep_alive = false;
  const auto reason = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(reply.status)));
  absl::StrAppend(&waiting_, "HTTP/1.1 ", reply.status, " ",
                  absl::string_view(reason.data(), reason.size()), "\r\n");
  AppendHeader(
      "Date",
      absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", context_->clock.WallNow(), absl::UTCTimeZone()),
      &waiting_);
  if (!reply.content_type.empty()) AppendHeader("Content-Type", reply.content_type, &waiting_);
  AppendHeader("x-request-id", framing_.request_id, &waiting_);
  for (const auto& [name, value] : reply.headers) AppendHeader(name, value, &waiting_);
  if (whole) AppendHeader("Content-Length", absl::StrCat(reply.body.size()), &waiting_);
  if (chunked) AppendHeader("Transfer-Encoding", "chunked", &waiting_);
  if (!framing_.keep_alive) {
    AppendHeader("Connection", "close", &waiting_);
  } else if (framing_.http10) {
    AppendHeader("Connection", "keep-alive", &waiting_);
  }
  waiting_ += "\r\n";
}

// False when the piece does not fit.
bool Exchange::AppendPiece(absl::string_view piece) {
  if (piece.empty() || framing_.head_only) return true;
  const size_t bytes = waiting_.size() + writing_bytes_;
  if (bytes > 0 && bytes + piece.size() > context_->options.stream_bytes_max) {
    ++context_->overflowed;
    state_ = State::kEnded;
    aborted_ = true;
    waiting_.clear();
    port_->PostAbort();
    return false;
  }
  if (framing_.http10) {
    absl::StrAppend(&waiting_, piece);
  } else {
    absl::StrAppend(&waiting_, absl::Hex(piece.size()), "\r\n", piece, "\r\n");
  }
  return true;
}

void Exchange::Reply(HttpReply reply) {
  MutexLock lock(mutex_);
  if (state_ != State::kWaiting || port_ == nullptr) return;
  AppendHead(reply, true);
  if (!framing_.head_only) waiting_ += reply.body;
  state_ = State::kEnded;
  port_->PostFlush();
}

bool Exchange::BeginStream(HttpReply head) {
  MutexLock lock(mutex_);
  if (state_ != State::kWaiting || port_ == nullptr) return false;
  AppendHead(head, false);
  state_ = State::kStreaming;
  produced_ = true;
  if (!AppendPiece(head.body)) return false;
  port_->PostFlush();
  return true;
}

bool Exchange::Write(absl::string_view piece) {
  MutexLock lock(mutex_);
  if (state_ != State::kStreaming || port_ == nullptr) return false;
  const bool flushing = !waiting_.empty();
  produced_ = true;
  if (!AppendPiece(piece)) return false;
  if (!flushing) port_->PostFlush();
  return true;
}

bool Exchange::EndStream() {
  MutexLock lock(mutex_);
  if (state_ != State::kStreaming || port_ == nullptr) return false;
  if (!framing_.http10 && !framing_.head_only) waiting_ += "0\r\n\r\n";
  state_ = State::kEnded;
  port_->PostFlush();
  return true;
}

size_t Exchange::backlog_bytes() const {
  MutexLock lock(mutex_);
  return waiting_.size() + writing_bytes_;
}

void Exchange::Abort() {
  MutexLock lock(mutex_);
  if (port_ == nullptr || aborted_) return;
  state_ = State::kEnded;
  aborted_ = true;
  waiting_.clear();
  port_->PostAbort();
}

void Exchange::Release() {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kEnded) return;
    if (state_ == State::kStreaming && port_ != nullptr) {
      state_ = State::kEnded;
      aborted_ = true;
      port_->PostAbort();
      return;
    }
  }
  Reply({.status = 500,
         .body = ErrorBody({.message = "the server gave no answer", .type = "server_error"})});
}

void Exchange::OnGone(std::function<void()> gone) {
  {
    MutexLock lock(mutex_);
    if (!gone_) {
      if (port_ != nullptr) on_gone_.swap(gone);
      return;
    }
  }
  gone();
}

void Exchange::OnIdle(absl::Duration interval, std::function<void()> idle) {
  MutexLock lock(mutex_);
  if (port_ == nullptr || state_ == State::kEnded) return;
  on_idle_.swap(idle);
  port_->PostIdleTimer(interval);
}

std::string Exchange::Take() {
  MutexLock lock(mutex_);
  writing_bytes_ = waiting_.size();
  return std::exchange(waiting_, {});
}

bool Exchange::Complete() {
  MutexLock lock(mutex_);
  return state_ == State::kEnded && !aborted_ && waiting_.empty();
}

bool Exchange::KeepAlive() {
  MutexLock lock(mutex_);
  return framing_.keep_alive;
}

bool Exchange::OnIdleTimer() {
  std::function<void()> idle;
  {
    MutexLock lock(mutex_);
    if (port_ == nullptr || state_ == State::kEnded) return false;
    if (!std::exchange(produced_, false)) idle = on_idle_;
  }
  if (idle) idle();
  MutexLock lock(mutex_);
  produced_ = false;
  return true;
}

void Exchange::Detach() {
  // Destroyed outside the lock: either may own the responder, which takes it.
  std::function<void()> gone;
  std::function<void()> idle;
  bool left = false;
  {
    MutexLock lock(mutex_);
    if (port_ == nullptr) return;
    port_ = nullptr;
    gone_ = state_ != State::kEnded || aborted_ || !waiting_.empty() || writing_bytes_ > 0;
    left = gone_;
    gone.swap(on_gone_);
    idle.swap(on_idle_);
  }
  if (!left) return;
  ++context_->gone;
  if (gone) gone();
}

HttpResponder::HttpResponder(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
HttpResponder::~HttpResponder() { exchange_->Release(); }
void HttpResponder::Reply(HttpReply reply) { exchange_->Reply(std::move(reply)); }
bool HttpResponder::BeginStream(HttpReply head) { return exchange_->BeginStream(std::move(head)); }
bool HttpResponder::Write(absl::string_view piece) { return exchange_->Write(piece); }
bool HttpResponder::EndStream() { return exchange_->EndStream(); }
size_t HttpResponder::backlog_bytes() const { return exchange_->backlog_bytes(); }
void HttpResponder::Abort() { exchange_->Abort(); }
void HttpResponder::OnGone(std::function<void()> gone) { exchange_->OnGone(std::move(gone)); }
void HttpResponder::OnIdle(absl::Duration interval, std::function<void()> idle) {
  exchange_->OnIdle(interval, std::move(idle));
}

}  // namespace sluice::http
