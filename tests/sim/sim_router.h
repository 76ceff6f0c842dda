// One router and the manager that tells it of workers: the real request flow, queue, directory,
// placement and block index.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/random.h"
#include "cluster/block_index.h"
#include "cluster/directory.h"
#include "cluster/fair_queue.h"
#include "cluster/placement.h"
#include "cluster/poison_guard.h"
#include "cluster/request_flow.h"
#include "kv/block_key.h"
#include "kv/prefix_index.h"
#include "tests/sim/rpc_net.h"
#include "tests/sim/sim_client.h"
#include "tests/support/sim_loop.h"

namespace sluice::sim {

// A client's request and what it does besides waiting.
struct SimRequest {
  absl::Duration arrival;
  absl::Duration deadline = absl::Seconds(20);  // after arrival
  std::vector<request::TokenId> prompt;
  request::SamplingParams sampling;
  std::string tenant = "t";
  int32_t priority = 0;
  bool reuse = true;  // has a cache domain
  // After arrival: the client leaves, or its stop string matched.
  std::optional<absl::Duration> leaves;
  bool leaves_content = false;
};

// What the client saw.
struct SimOutcome {
  int ends = 0;
  std::vector<request::TokenId> tokens;
  request::FinishReason finish = request::FinishReason::kNone;
  absl::Status status;
  cluster::FlowSummary summary;
  absl::Time due;  // arrival + deadline
  absl::Time ended;
  bool left = false;
  bool hurried = false;  // the deadline leaves no time to wait
};

struct RouterOptions {
  cluster::RetryOptions retry;
  cluster::BreakerOptions breaker;
  cluster::FairQueueOptions queue;
  cluster::PlacementOptions placement;
  absl::Duration lookup_max = absl::Milliseconds(20);
  // A worker that was not heard of for so long is taken out of the view.
  absl::Duration silence_max = absl::Seconds(2);
  SimClient::Repeats repeats;
};

struct Heartbeat {
  cluster::WorkerDescription description;
  cluster::LoadReport load;
  bool snapshot = false;
  uint64_t sequence = 0;  // of the first change, or of the last one in the snapshot
  std::vector<kv::BlockChange> blocks;
};

class SimRouter {
 public:
  // `problem` hears of what must never happen; `slot_of` maps workers to the network's slots.
  SimRouter(testing::SimLoop& loop, RpcNet& net, SimClient::SlotOf slot_of,
            const RouterOptions& options, uint64_t seed, std::function<void(std::string)> problem);
  ~SimRouter();

  // A request arrives now. `reference` is what an undisturbed run says. Returns its number.
  size_t Submit(const SimRequest& request, std::vector<request::TokenId> reference);
  const std::vector<std::unique_ptr<SimOutcome>>& outcomes() const { return outcomes_; }
  size_t running() const { return live_; }

  // From a worker. Returns true if the worker should send a snapshot of its blocks.
  bool OnHeartbeat(Heartbeat heartbeat);
  // Called now and then: drops workers that are silent.
  void Tick();
  bool Knows(const WorkerId& worker, Incarnation incarnation) const;
  // Once nothing runs: nothing is booked, nothing waits. Empty if so.
  std::string CheckIdle() const;

 private:
  class Client;
  void Start(Client& client);
  void OnDone(Client& client, const absl::Status& status, const cluster::FlowSummary& summary);
  void End(Client& client, const absl::Status& status);
  void Leave(Client& client);
  void Place(const cluster::PlacementQuery& query, const cluster::FlowSpec& spec,
             absl::AnyInvocable<void(absl::StatusOr<cluster::PlacementDecision>)> done);
  void PublishView();

  struct Known {
    Heartbeat last;
    absl::Time heard;
  };

  testing::SimLoop& loop_;
  RpcNet& net_;
  const RouterOptions options_;
  SeededRandom random_;
  const std::function<void(std::string)> problem_;
  SimClient client_;
  cluster::Directory directory_;
  cluster::BlockIndex blocks_;
  cluster::RetryBudget budget_;
  cluster::PoisonGuard poison_;
  cluster::FairQueue queue_;
  cluster::FlowEnvironment environment_;
  std::map<WorkerId, Known> workers_;
  uint64_t view_version_ = 0;
  std::vector<std::unique_ptr<SimOutcome>> outcomes_;
  std::vector<std::unique_ptr<Client>> clients_;
  size_t live_ = 0;
};

}  // namespace sluice::sim
