// Generates through a cluster: one blocking call that survives the loss of a router.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "rpc/channel_pool.h"
#include "rpc/client_call.h"
#include "services/cli/client/stream_progress.h"
#include "services/cli/client/url.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::cli {

struct GenerateOutcome {
  v1::GenerateStart start;
  std::string finish_reason;
  v1::Usage usage;
  uint32_t resumes = 0;  // how often the stream went on at another router
};

// Generate by one thread at a time; Cancel by any.
class GenerateClient {
 public:
  // `endpoints`: at least one. `api_key` may be empty.
  GenerateClient(std::vector<Endpoint> endpoints, const std::string& api_key);

  // Runs one request to its end; a request id is made where it has none. `on_text` gets the text as
  // it arrives, every byte once. When a stream breaks, the next address takes it up where it
  // stopped; given up when none of them brings any progress. `on_notice` (may be null) is told.
  // Errors: the router's, CANCELLED after Cancel, UNAVAILABLE when no router answers.
  absl::StatusOr<GenerateOutcome> Generate(v1::GenerateRequest request,
                                           const std::function<void(const NewText&)>& on_text,
                                           const std::function<void(absl::string_view)>& on_notice);

  // Ends the Generate that runs, if any.
  void Cancel();

 private:
  // One stream at the current address, to its end.
  absl::Status RunOnce(StreamProgress& progress,
                       const std::function<void(const NewText&)>& on_text);

  const std::vector<Endpoint> endpoints_;
  rpc::CallOptions options_;
  rpc::ChannelPool channels_;
  size_t current_ = 0;  // the address that worked last

  Mutex mutex_;
  std::shared_ptr<rpc::ClientCall> call_ SLUICE_GUARDED_BY(mutex_);
  bool cancelled_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::cli
