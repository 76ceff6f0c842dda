// An Inference service for tests: streams a text that depends on nothing but the seed, breaks where
// it is told to, and remembers what it was asked. Not part of any program.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "rpc/server.h"
#include "sluice/v1/inference.grpc.pb.h"

namespace sluice::cli {

struct FakeInferenceOptions {
  uint32_t vocabulary = 256;
  uint32_t tokens = 10;  // of every answer, at most max_tokens
  // Ends the stream with this status after so many new tokens, once `breaks` times.
  absl::Status break_with;
  uint32_t break_after = 0;
  uint32_t breaks = 0;
  // Streams stay open after their tokens until they are cancelled.
  bool hang = false;
  std::string numerics = "0123456789abcdef";
};

// Thread-safe.
class FakeInference final : public v1::Inference::CallbackService {
 public:
  explicit FakeInference(const FakeInferenceOptions& options) : options_(options) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;

  // Everything asked so far, and the authorization that came with each.
  std::vector<v1::GenerateRequest> requests() const;
  std::vector<std::string> keys() const;

  // The text of token `position` of a stream with this seed.
  static std::string TextOf(uint64_t seed, uint32_t position);
  static std::string WholeText(uint64_t seed, uint32_t tokens);

 private:
  // What one call is to do, decided under the lock.
  bool TakeBreak();

  const FakeInferenceOptions options_;
  mutable Mutex mutex_;
  uint32_t broken_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::vector<v1::GenerateRequest> requests_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::string> keys_ SLUICE_GUARDED_BY(mutex_);
};

// The service on a loopback port of its own.
class FakeRouter {
 public:
  static std::unique_ptr<FakeRouter> Start(const FakeInferenceOptions& options);
  ~FakeRouter();
  FakeInference& service() { return service_; }
  const std::string& address() const { return server_->address(); }

 private:
  explicit FakeRouter(const FakeInferenceOptions& options) : service_(options) {}
  FakeInference service_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace sluice::cli
