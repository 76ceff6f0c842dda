// What the public front ends (gRPC and HTTP) need of a router. Both speak the messages of
// inference.proto to it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "identity/authenticator.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::rpc {

// The header or metadata in which a trusted proxy names a tenant.
inline constexpr char kTenantHeader[] = "x-sluice-tenant";

// What follows "Bearer " in the value of an authorization header; empty when it is another kind.
std::string BearerOf(absl::string_view authorization);

// Who asks, after authentication.
struct Caller {
  TenantId tenant;
  // Absolute, on the router's clock; infinite: the router's default applies.
  absl::Time deadline = absl::InfiniteFuture();
};

// Receives one generation. Called on one thread of the router at a time; must not block.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // False when the client is gone or reads too slowly; the generation is cancelled then.
  virtual bool OnMessage(v1::GenerateResponse message) = 0;
  // Bytes that wait for the client to read; 0 where nothing is streamed.
  virtual size_t backlog_bytes() const { return 0; }
  // The last call. OK only after the message with the usage.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Thread-safe; nothing blocks but the short text calls.
class InferenceBackend {
 public:
  virtual ~InferenceBackend() = default;

  // Whose the credentials are. Errors: UNAUTHENTICATED with reason INVALID_API_KEY, in the same
  // words whatever was wrong with what was brought.
  virtual absl::StatusOr<TenantId> Authenticate(const identity::Credentials& credentials) = 0;

  // Starts a generation; every outcome, bad requests included, arrives at the sink, later and on
  // another thread. The returned function cancels it; idempotent, callable at any time, also after
  // the end.
  virtual std::function<void()> Generate(v1::GenerateRequest request, Caller caller,
                                         std::unique_ptr<GenerationSink> sink) = 0;

  virtual v1::ListModelsResponse ListModels() = 0;
  virtual absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) = 0;
  virtual absl::StatusOr<v1::DetokenizeResponse> Detokenize(
      const v1::DetokenizeRequest& request) = 0;

  // May admit requests now.
  virtual bool Ready() const = 0;
};

}  // namespace sluice::rpc
