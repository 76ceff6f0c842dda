// One request of a client: its choices, their text, and the messages it gets. Runs on the router's
// loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/request_flow.h"
#include "rpc/inference_backend.h"
#include "services/text_model/text_model.h"
#include "sluice/v1/inference.pb.h"
#include "text/output/output_reader.h"

namespace sluice::router {

// A request after its text was encoded and everything a client may get wrong was checked.
struct PreparedRequest {
  v1::GenerateRequest request;
  rpc::Caller caller;
  std::shared_ptr<const services::TextModel> model;
  cluster::FlowSpec flow;  // of choice 0
  uint32_t choices = 1;
  text::OutputOptions output;                          // how the answer is read
  std::vector<uint32_t> resume_positions;              // empty, or one per choice
  absl::Duration reader_patience = absl::Seconds(20);  // with a client that reads too slowly
  std::optional<v1::RateLimits> rate_limits;           // told with the first message
};

// Encodes and checks. Runs on any thread. Errors carry an ErrorDetail with the field.
// `served_name` is what the cluster calls the model.
absl::StatusOr<PreparedRequest> PrepareRequest(v1::GenerateRequest request,
                                               const rpc::Caller& caller,
                                               std::shared_ptr<const services::TextModel> model,
                                               absl::string_view served_name);

// What a generation reports when it is over, for metrics.
struct GenerationReport {
  absl::Status status;
  v1::Usage usage;
  absl::Time admitted;
  absl::Time first_token = absl::InfiniteFuture();
  cluster::FlowSummary first_choice;
  std::vector<cluster::FlowMove> moves;  // of all choices
  uint32_t pauses = 0;                   // because the client did not read
};

// Owned by the router's loop, held by shared_ptr from Start to OnEnd.
class Generation final : public std::enable_shared_from_this<Generation> {
 public:
  using Done = std::function<void(const GenerationReport&)>;
  // The first choice seeks no worker any more. Maybe several times.
  using Sought = std::function<void()>;
  // Called for every token of a choice but its first, with the time since its last one.
  using TokenObserver = std::function<void(absl::Duration gap)>;
  static std::shared_ptr<Generation> Create(cluster::FlowEnvironment& environment,
                                            PreparedRequest prepared,
                                            std::unique_ptr<rpc::GenerationSink> sink,
                                            TokenObserver on_token, Sought sought, Done done);
  ~Generation();

  void Start();
  // Ends everything with `status`; the sink hears it.
  void Cancel(const absl::Status& status);
  void OnWorkerLost(const WorkerId& worker);
  const PreparedRequest& prepared() const { return prepared_; }
  bool ended() const { return ended_; }

 private:
  class Choice;
  Generation(cluster::FlowEnvironment& environment, PreparedRequest prepared,
             std::unique_ptr<rpc::GenerationSink> sink, TokenObserver on_token, Sought sought,
             Done done);
  void StartSiblings();
  void OnPlaced(Id128 prefill_numerics, Id128 decode_numerics);
  // `last_sent`: when the choice's last token went out; set to now.
  void Send(v1::ChoiceDelta delta, std::optional<absl::Time>* last_sent);
  void OnChoiceDone(uint32_t index, const absl::Status& status,
                    const cluster::FlowSummary& summary);
  // The client reads too slowly: its sequences give up their places until it has caught up.
  void Pause();
  void WatchReader(absl::Time until);
  absl::Status SlowReader(size_t waiting_bytes) const;
  void End(const absl::Status& status);

  cluster::FlowEnvironment& env_;
  const PreparedRequest prepared_;
  std::unique_ptr<rpc::GenerationSink> sink_;
  TokenObserver on_token_;
  Sought sought_;
  Done done_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::optional<std::pair<Id128, Id128>> numerics_;  // of choice 0: prefill, decode
  std::optional<v1::GenerateStart> start_;           // until it went out with the first delta
  GenerationReport report_;
  uint32_t choices_done_ = 0;
  bool paused_ = false;
  TimerId reader_timer_ = kNoTimer;
  bool ended_ = false;
};

}  // namespace sluice::router
