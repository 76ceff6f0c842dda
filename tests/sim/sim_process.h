// One process of a worker: the whole real worker with the toy model, on three simulated threads. A
// restart is a new object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/fault.h"
#include "base/ids.h"
#include "base/random.h"
#include "cluster/directory.h"
#include "engine/toy_model.h"
#include "handoff/worker.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "sluice/v1/cache.pb.h"
#include "tests/sim/sim_transport.h"
#include "tests/support/sim_loop.h"
#include "transport/loopback.h"

namespace sluice::sim {

// The named fault points of a worker's libraries.
inline constexpr const char* kFaultPoints[] = {"engine.before_forward",  "engine.after_forward",
                                               "handoff.grant",          "handoff.open",
                                               "handoff.offer_sent",     "handoff.offer_received",
                                               "handoff.fetch_started",  "handoff.fetch_done",
                                               "handoff.commit_sent",    "handoff.commit_received",
                                               "handoff.landed",         "handoff.released",
                                               "worker.prefill_started", "worker.first_token",
                                               "worker.decode_started",  "worker.token"};

struct ProcessOptions {
  handoff::WorkerOptions worker;
  engine::ToyModelOptions model;
  TransportPlan transport;
  size_t pages = 16;
  // A step takes this long, and so much more per token.
  absl::Duration step_cost = absl::Milliseconds(4);
  absl::Duration token_cost = absl::Microseconds(200);
  // Probability that a fault point fails when it is reached, while faults last.
  double point_failure = 0;
};

class SimProcess {
 public:
  // `name` is the worker's; it stays over restarts. World and network outlive the process.
  SimProcess(testing::SimWorld& world, transport::LoopbackNetwork& network, absl::string_view name,
             cluster::Role role, const ProcessOptions& options, uint64_t seed);
  // As kill -9: nothing runs after it, nobody is told. Not from within one of the process's own
  // tasks.
  ~SimProcess();

  // Stops the whole process for a while, as SIGSTOP does, or one of its threads; its memory can be
  // read all the same.
  void SetPaused(bool whole, bool engine, bool move);
  // Hands what the network has for this process to its move loop.
  void PostPoll();
  bool WantsPoll() const;
  void set_slowdown(double factor) { slowdown_ = factor; }
  // No fault of its own from here on.
  void Heal();

  handoff::Worker& worker() { return *worker_; }
  const kv::PagePool& pool() const { return *pool_; }
  kv::PrefixIndex& index() { return *index_; }
  const engine::ModelInfo& model_info() const { return model_->info(); }
  FaultInjector& points() { return points_; }
  SimTransport& transport() { return *transport_; }
  transport::NodeId node() const { return transport_->node(); }
  // Overwrites a page that is in use or cached, tag and bytes, as whoever got it next would. True
  // if there was one.
  bool LoseAPage();
  testing::SimLoop& engine_loop() { return engine_loop_; }
  testing::SimLoop& move_loop() { return move_loop_; }
  testing::SimLoop& rpc_loop() { return rpc_loop_; }
  cluster::Role role() const { return role_; }
  Incarnation incarnation() const { return incarnation_; }
  // What it registers with.
  const std::shared_ptr<const v1::WorkerInfo>& info() const { return info_; }
  v1::WorkerLoad Load() const;

  // What must hold after every event; empty if it does.
  std::string CheckInvariants() const;
  // What must hold once there is nothing to do: nothing is held and nothing is under way. Empty if
  // so.
  std::string CheckIdle();

  bool snapshot_wanted = true;  // by whoever keeps the index of blocks

 private:
  const ProcessOptions options_;
  testing::SimLoop& engine_loop_;
  testing::SimLoop& move_loop_;
  testing::SimLoop& rpc_loop_;
  transport::LoopbackNetwork& network_;
  SeededRandom random_;
  FaultInjector points_;
  double slowdown_ = 1;
  bool poll_posted_ = false;
  const cluster::Role role_;
  Incarnation incarnation_;
  std::shared_ptr<const v1::WorkerInfo> info_;
  std::unique_ptr<engine::ModelRunner> model_;
  std::unique_ptr<SimTransport> transport_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<kv::PrefixIndex> index_;
  std::unique_ptr<handoff::Worker> worker_;
};

}  // namespace sluice::sim
