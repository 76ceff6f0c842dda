// The OpenAI-compatible front of a router.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "http/http_server.h"
#include "rpc/inference_backend.h"

namespace sluice::http {

struct OpenAiServerOptions {
  // Address, sizes, timeouts, connections.
  HttpServerOptions http = {.threads = 2};
  // Of one answer that is not streamed, while it is gathered. Over it the request fails and its
  // generation is cancelled.
  size_t reply_bytes_max = 16 << 20;
  // A comment is sent in a stream that was silent for between one and two of these.
  absl::Duration ping_interval = absl::Seconds(15);
  // Tokenize and detokenize requests that may wait for their one thread.
  int text_waiting_max = 64;
  // For GET /version.
  std::string version = "0.1.0";
};

// Serves /v1/chat/completions, /v1/completions, /v1/models[/ID], /tokenize, /detokenize, /health,
// /live, /ready, /version. Thread-safe.
class OpenAiServer {
 public:
  // `backend` and `clock` must outlive the server; sinks given to the backend may be used and
  // destroyed after it. Errors: those of rpc::CheckListen.
  static absl::StatusOr<std::unique_ptr<OpenAiServer>> Start(const OpenAiServerOptions& options,
                                                             rpc::InferenceBackend& backend,
                                                             Clock& clock);
  virtual ~OpenAiServer() = default;  // Shutdown(0)

  // The bound "host:port".
  virtual const std::string& address() const = 0;
  // As HttpServer's.
  virtual void BeginShutdown() = 0;
  // Accepts no more connections, lets running requests end for up to `grace`, cancels the rest and
  // joins. Idempotent.
  virtual void Shutdown(absl::Duration grace) = 0;
  virtual HttpServerStats stats() const = 0;
};

}  // namespace sluice::http
