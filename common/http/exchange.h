// What one answer and its connection share: the bytes that wait, how the answer ends, who is told
// that the client left.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "http/http_server.h"

namespace sluice::http {

class Connection;

// What all connections and answers of a server share. Outlives the server for answers that do so.
struct ServerContext {
  ServerContext(HttpServerOptions o, HttpHandler h, Clock& c)
      : options(std::move(o)), handler(std::move(h)), clock(c) {}

  const HttpServerOptions options;
  const HttpHandler handler;
  Clock& clock;
  SecureRandom random;
  std::atomic<bool> draining{false};  // connections close after the answer in progress
  std::atomic<uint64_t> accepted{0}, connections_refused{0}, connections_evicted{0}, requests{0},
      refused{0}, overflowed{0}, gone{0};

  Mutex mutex;
  CondVar none_left;
  absl::flat_hash_map<Connection*, std::weak_ptr<Connection>> connections SLUICE_GUARDED_BY(mutex);
  // Those that wait for their client, the longest wait first: what is closed when a new connection
  // needs the place.
  absl::btree_map<uint64_t, std::weak_ptr<Connection>> waiting SLUICE_GUARDED_BY(mutex);
  uint64_t waits_begun SLUICE_GUARDED_BY(mutex) = 0;
};

// What a connection can be asked for from any thread; each is carried out on the connection's
// strand.
class ConnectionPort {
 public:
  virtual ~ConnectionPort() = default;
  virtual void PostFlush() = 0;
  virtual void PostAbort() = 0;
  virtual void PostIdleTimer(absl::Duration interval) = 0;
};

// How the answer must be framed.
struct Framing {
  std::string request_id;
  bool http10 = false;     // no chunks: the end of a stream is the end of the connection
  bool head_only = false;  // HEAD: no body
  bool keep_alive = true;
};

// Thread-safe. The mutex is a leaf: callbacks run outside it, and of the port only the posts are
// called inside.
class Exchange {
 public:
  Exchange(std::shared_ptr<ServerContext> context, Framing framing, ConnectionPort* port)
      : context_(std::move(context)), framing_(std::move(framing)), port_(port) {}

  // For the producer; see HttpResponder.
  void Reply(HttpReply reply);
  bool BeginStream(HttpReply head);
  bool Write(absl::string_view piece);
  bool EndStream();
  size_t backlog_bytes() const;
  void Abort();
  void OnGone(std::function<void()> gone);
  void OnIdle(absl::Duration interval, std::function<void()> idle);
  // The producer is gone.
  void Release();

  // For the connection, on its strand. Takes what waits; the previous take has been written.
  std::string Take();
  // Everything has been produced and taken.
  bool Complete();
  bool KeepAlive();
  // Runs `idle` when nothing was produced since the last call. False when no more calls are needed.
  bool OnIdleTimer();
  // The connection forgets this exchange: the answer is complete or the client is gone.
  void Detach();

 private:
  enum class State { kWaiting, kStreaming, kEnded };

  void AppendHead(const HttpReply& reply, bool whole) SLUICE_REQUIRES(mutex_);
  bool AppendPiece(absl::string_view piece) SLUICE_REQUIRES(mutex_);

  const std::shared_ptr<ServerContext> context_;
  mutable Mutex mutex_;
  Framing framing_ SLUICE_GUARDED_BY(mutex_);
  ConnectionPort* port_ SLUICE_GUARDED_BY(mutex_);  // null once detached
  State state_ SLUICE_GUARDED_BY(mutex_) = State::kWaiting;
  bool aborted_ SLUICE_GUARDED_BY(mutex_) = false;
  std::string waiting_ SLUICE_GUARDED_BY(mutex_);
  size_t writing_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool produced_ SLUICE_GUARDED_BY(mutex_) = false;  // since the last idle timer
  bool gone_ SLUICE_GUARDED_BY(mutex_) = false;
  std::function<void()> on_gone_ SLUICE_GUARDED_BY(mutex_);
  std::function<void()> on_idle_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::http
