// Sends a plan of requests to a cluster over gRPC and keeps a record of each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "rpc/client_call.h"
#include "services/cli/client/url.h"
#include "services/cli/load/dataset.h"
#include "services/cli/load/dispatcher.h"
#include "services/cli/load/record.h"
#include "sluice/v1/inference.grpc.pb.h"

namespace sluice::cli {

struct LoadRunOptions {
  std::vector<Endpoint> endpoints;    // requests take turns
  std::vector<std::string> api_keys;  // a tenant each; sessions take turns; empty: one without key
  std::string model;                  // empty: the first one served
  absl::Duration timeout = absl::Minutes(10);  // of one request
};

struct LoadProgress {
  uint64_t ended = 0;
  uint64_t total = 0;
  uint64_t failed = 0;
  uint32_t in_flight = 0;
  uint64_t output_tokens = 0;
  absl::Duration elapsed;
};

struct LoadRun {
  std::vector<RequestRecord> records;  // in the order in which they ended
  uint64_t not_sent = 0;
  uint32_t peak_in_flight = 0;
  absl::Duration duration;  // from the start to the last end
};

// Describe, Run: one thread. Stop: any thread.
class LoadRunner {
 public:
  // `clock` must outlive the runner. `connections`: at most this many requests share one
  // connection's limit of concurrent streams; at least 1.
  LoadRunner(LoadRunOptions options, const Clock& clock, uint32_t connections);
  ~LoadRunner();

  // Asks every connection for the models and so opens it. Errors: UNAVAILABLE naming the address,
  // NOT_FOUND naming the models that are served, the router's own.
  absl::StatusOr<v1::Model> Describe();

  // Runs the plan to its end. Prompts are token ids below `model.vocabulary()`; end tokens are
  // ignored, so that every answer has the planned length. `progress` (may be null) is called about
  // five times a second. Failed requests are records, not errors.
  LoadRun Run(const std::vector<LoadSession>& sessions, const v1::Model& model,
              DispatchOptions dispatch, const std::function<void(const LoadProgress&)>& progress);

  // Sends nothing more and cancels what is in flight; Run returns soon.
  void Stop();

 private:
  class Reader;
  struct Finished {
    size_t session = 0;
    RequestRecord record;
    std::vector<uint32_t> output;
  };
  struct Conversation {
    std::vector<uint32_t> tokens;
    std::shared_ptr<rpc::ClientCall> call;  // while in flight
  };
  using Queue = BoundedQueue<Finished>;

  void Send(const LoadSession& session, const Dispatch& dispatch, const v1::Model& model,
            Conversation* conversation);
  rpc::CallOptions CallOptionsOf(size_t tenant) const;
  size_t TenantOf(size_t session) const {
    return options_.api_keys.empty() ? 0 : session % options_.api_keys.size();
  }

  const LoadRunOptions options_;
  const Clock& clock_;
  std::vector<std::string> addresses_;  // of each stub
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  size_t next_stub_ = 0;
  // Shared with readers, which may still be inside a push when Run has all it waited for.
  std::shared_ptr<Queue> finished_;
  std::shared_ptr<std::atomic<uint64_t>> output_tokens_;
  std::atomic<bool> stop_{false};
};

}  // namespace sluice::cli
