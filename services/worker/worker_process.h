// A worker of either role, whole: model, pages, transport, loops, hand-off, gRPC, metrics, link to
// the cache-manager.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/random.h"
#include "base/thread_loop.h"
#include "engine/model_runner.h"
#include "handoff/worker.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "services/local_model/local_model.h"
#include "services/process/service_process.h"
#include "services/worker/call_frame.h"
#include "services/worker/decode_service.h"
#include "services/worker/manager_link.h"
#include "services/worker/prefill_service.h"
#include "services/worker/worker_metrics.h"
#include "sluice/v1/config.pb.h"
#include "transport/transport.h"

namespace sluice::services {

// Makes the transport that a configuration names. Tests join workers of one process by their own.
using TransportMaker = absl::AnyInvocable<absl::StatusOr<std::unique_ptr<transport::Transport>>(
    const v1::WorkerConfig&)>;

// Threads: engine loop and move loop, the model's compute threads, gRPC's, the metrics server's.
// The destructor stops all.
class WorkerProcess {
 public:
  // `config` as config::LoadWorkerConfig gives it; `service` is "prefill" or "decode". Serves and
  // is ready afterwards. Errors: NOT_FOUND or INVALID_ARGUMENT for the model, those of
  // rpc::CheckListen, RESOURCE_EXHAUSTED for memory.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(const v1::WorkerConfig& config,
                                                              absl::string_view service,
                                                              TransportMaker make_transport,
                                                              bool handle_signals);
  ~WorkerProcess();

  ServiceProcess& process() { return process_; }
  handoff::Worker& worker() { return *worker_; }
  const engine::ModelInfo& model() const { return model_.runner->info(); }
  const kv::PagePool& pool() const { return *pool_; }

  // Returns once a drain has ended; the object is stopped then.
  void RunUntilDrained();

 private:
  WorkerProcess(const v1::WorkerConfig& config, absl::string_view service);

  absl::Status BuildGate();
  absl::Status LoadModel();
  absl::Status BuildPages();
  absl::Status BuildLoops();
  absl::Status Serve();
  void WireTransport();
  absl::Status ConnectManager();
  v1::WorkerInfo Info() const;
  absl::Status Live() const;
  void LogStart() const;

  const v1::WorkerConfig config_;
  ServiceProcess process_;
  LocalModel model_;
  double gigabytes_per_second_ = 0;  // measured reads of all compute threads
  std::unique_ptr<transport::Transport> transport_;
  std::string pool_remote_key_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<kv::PrefixIndex> index_;
  SecureRandom random_;
  const Incarnation incarnation_;
  std::unique_ptr<ThreadLoop> engine_loop_;
  std::unique_ptr<ThreadLoop> move_loop_;
  std::unique_ptr<ThreadLoop> link_loop_;
  std::unique_ptr<handoff::Worker> worker_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<ClaimKeyFile> claim_keys_;  // null: none
  std::unique_ptr<TenantGate> gate_;
  std::unique_ptr<PrefillService> prefill_service_;
  std::unique_ptr<DecodeService> decode_service_;
  std::unique_ptr<ManagerLink> link_;
};

}  // namespace sluice::services
