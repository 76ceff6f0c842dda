// sluice.v1.CacheManager: streams of workers and routers around the registry and the block index.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/loop.h"
#include "cluster/block_index.h"
#include "rpc/bidi_stream.h"
#include "rpc/server_stream.h"
#include "services/cache_manager/registry.h"
#include "services/cache_manager/tenant_budgets.h"
#include "sluice/v1/cache.grpc.pb.h"
#include "telemetry/metrics.h"

namespace sluice::cache_manager {

struct CacheManagerOptions {
  absl::Duration heartbeat = absl::Milliseconds(500);
  size_t blocks_max = 10'000'000;
  TenantBudgets::Options budgets = {};
};

// Registry and streams belong to `loop`; lookups are answered on gRPC's threads from the block
// index. The server must be shut down before the loop stops, and the loop stopped before this is
// destroyed.
class CacheManagerService final : public v1::CacheManager::CallbackService {
 public:
  CacheManagerService(const CacheManagerOptions& options, Loop& loop, telemetry::Registry& metrics);

  grpc::ServerBidiReactor<v1::WorkerUpdate, v1::ManagerUpdate>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::WorkerView>* WatchWorkers(
      grpc::CallbackServerContext* context, const v1::WatchWorkersRequest* request) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupReply* reply) override;
  // Any thread. Shares of the cache, from now on.
  void SetTenants(v1::TenantsFile file);

 private:
  using WorkerStream = rpc::BidiServerStream<v1::WorkerUpdate, v1::ManagerUpdate>;
  using ViewStream = rpc::ServerStream<v1::WorkerView>;
  class Reader;

  // Once a heartbeat period.
  void DropSilent();
  void DivideAgain();
  void OnUpdate(ConnectionId connection, const v1::WorkerUpdate& update);
  absl::Status OnAttach(ConnectionId connection, const v1::WorkerInfo& info);
  absl::Status OnEvents(ConnectionId connection, const v1::BlockEvents& events);
  // Ends a connection and forgets its worker.
  void Disconnect(ConnectionId connection, const absl::Status& why);
  // Sends the view to all watchers if it changed, now or together with other changes.
  void PublishView();
  void PublishSoon();
  void CountWorkers(const v1::WorkerView& view);

  const CacheManagerOptions options_;
  Loop& loop_;
  telemetry::Registry& metrics_;
  cluster::BlockIndex index_;
  std::atomic<uint64_t> connections_made_{0};

  // On the loop.
  Registry registry_;
  TenantBudgets budgets_;
  std::map<ConnectionId, std::unique_ptr<WorkerStream>> workers_;
  std::vector<std::unique_ptr<ViewStream>> watchers_;
  uint64_t published_version_ = 0;
  bool publish_scheduled_ = false;
};

}  // namespace sluice::cache_manager
