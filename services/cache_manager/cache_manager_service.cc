#include "services/cache_manager/cache_manager_service.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "rpc/domain.h"
#include "rpc/status_map.h"

namespace sluice::cache_manager {
namespace {

// Loads change with every heartbeat; watchers hear of them together.
constexpr absl::Duration kViewDelay = absl::Milliseconds(100);

absl::StatusOr<std::vector<kv::BlockKey>> ToKeys(const v1::KeyList& list) {
  std::vector<kv::BlockKey> keys;
  keys.reserve(static_cast<size_t>(list.keys_size()));
  for (const std::string& bytes : list.keys()) {
    SLUICE_ASSIGN_OR_RETURN(const Id128 key, rpc::ParseId128(bytes, "keys"));
    keys.push_back(kv::BlockKey(key));
  }
  return keys;
}

}  // namespace

// Carries a worker's messages to the loop, in order.
class CacheManagerService::Reader final : public rpc::StreamReader<v1::WorkerUpdate> {
 public:
  Reader(CacheManagerService& service, ConnectionId connection)
      : service_(service), connection_(connection) {}
  void OnMessage(v1::WorkerUpdate update) override {
    service_.loop_.Post([&service = service_, connection = connection_,
                         update = std::move(update)] { service.OnUpdate(connection, update); });
  }
  void OnEnd(const absl::Status&) override {
    service_.loop_.Post([&service = service_, connection = connection_] {
      service.Disconnect(connection, absl::OkStatus());
    });
  }

 private:
  CacheManagerService& service_;
  const ConnectionId connection_;
};

CacheManagerService::CacheManagerService(const CacheManagerOptions& options, Loop& loop,
                                         telemetry::Registry& metrics)
    : options_(options),
      loop_(loop),
      metrics_(metrics),
      index_(options.blocks_max),
      registry_(options.heartbeat),
      budgets_(options.budgets, loop.clock().Now(), metrics) {
  metrics.OnCollect([this, blocks = metrics.gauge(telemetry::kIndexBlocks),
                     overflows = metrics.counter(telemetry::kIndexOverflows),
                     gaps = metrics.counter(telemetry::kIndexGaps)] {
    const cluster::BlockIndex::Stats stats = index_.stats();
    blocks.Set(static_cast<double>(stats.blocks));
    overflows.AdvanceTo(static_cast<double>(stats.overflows));
    gaps.AdvanceTo(static_cast<double>(stats.gaps));
  });
  for (const char* result : {"hit", "miss"}) metrics.counter(telemetry::kLookups, {result});
  for (const char* kind : {"attach", "heartbeat", "events"})
    metrics.counter(telemetry::kWorkerUpdates, {kind});
  CountWorkers({});
  loop_.Post([this] { DropSilent(); });
  loop_.Post([this] { DivideAgain(); });
}

void CacheManagerService::SetTenants(v1::TenantsFile file) {
  loop_.Post([this, file = std::move(file)]() mutable { budgets_.SetTenants(std::move(file)); });
}

grpc::ServerBidiReactor<v1::WorkerUpdate, v1::ManagerUpdate>* CacheManagerService::Attach(
    grpc::CallbackServerContext*) {
  const ConnectionId connection(++connections_made_);
  auto stream = std::make_unique<WorkerStream>(std::make_unique<Reader>(*this, connection));
  auto* reactor = stream->reactor();
  // gRPC reads nothing before this method returns, so the stream is known on the loop before its
  // first message.
  loop_.Post([this, connection, stream = std::move(stream)]() mutable {
    workers_[connection] = std::move(stream);
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::WorkerView>* CacheManagerService::WatchWorkers(
    grpc::CallbackServerContext* context, const v1::WatchWorkersRequest*) {
  auto stream = std::make_unique<ViewStream>(
      context, rpc::StreamOptions{.queue_bytes_max = size_t{16} << 20});
  auto* reactor = stream->reactor();
  loop_.Post([this, stream = std::move(stream)]() mutable {
    if (stream->Write(registry_.View())) watchers_.push_back(std::move(stream));
  });
  return reactor;
}

grpc::ServerUnaryReactor* CacheManagerService::Lookup(grpc::CallbackServerContext* context,
                                                      const v1::LookupRequest* request,
                                                      v1::LookupReply* reply) {
  // A worker has one numerics id, so only one of the lists can name its blocks.
  for (const v1::KeyList& list : request->lists()) {
    const auto keys = ToKeys(list);
    if (!keys.ok()) return rpc::FinishUnary(context, keys.status());
    for (const cluster::WorkerHit& hit : index_.Lookup(*keys)) {
      v1::WorkerHit* message = reply->add_hits();
      message->set_worker_id(hit.worker.value());
      message->set_incarnation(hit.incarnation.value());
      message->set_blocks(hit.blocks);
    }
  }
  metrics_.counter(telemetry::kLookups, {reply->hits_size() > 0 ? "hit" : "miss"}).Add();
  return rpc::FinishUnary(context, absl::OkStatus());
}

void CacheManagerService::DropSilent() {
  for (ConnectionId connection : registry_.Silent(loop_.clock().Now())) {
    Disconnect(connection, absl::UnavailableError("no heartbeat for three periods; attach again"));
  }
  loop_.RunAt(loop_.clock().Now() + options_.heartbeat, [this] { DropSilent(); });
}

// Twice a heartbeat, and not more than a tenth of the loop's time.
void CacheManagerService::DivideAgain() {
  const absl::Time begun = loop_.clock().Now();
  for (auto& [worker, update] : budgets_.Divide(begun)) {
    const std::optional<ConnectionId> connection = registry_.ConnectionOf(worker);
    const auto stream = connection ? workers_.find(*connection) : workers_.end();
    if (stream == workers_.end()) continue;
    v1::ManagerUpdate message;
    *message.mutable_budgets() = std::move(update);
    stream->second->Write(std::move(message));
  }
  const absl::Time done = loop_.clock().Now();
  loop_.RunAt(done + std::max(options_.heartbeat / 2, 10 * (done - begun)),
              [this] { DivideAgain(); });
}

void CacheManagerService::PublishSoon() {
  if (publish_scheduled_ || registry_.version() == published_version_) return;
  publish_scheduled_ = true;
  loop_.RunAt(loop_.clock().Now() + kViewDelay, [this] {
    publish_scheduled_ = false;
    PublishView();
  });
}

void CacheManagerService::OnUpdate(ConnectionId connection, const v1::WorkerUpdate& update) {
  absl::Status status;
  switch (update.update_case()) {
    case v1::WorkerUpdate::kAttach:
      metrics_.counter(telemetry::kWorkerUpdates, {"attach"}).Add();
      status = OnAttach(connection, update.attach());
      break;
    case v1::WorkerUpdate::kHeartbeat:
      metrics_.counter(telemetry::kWorkerUpdates, {"heartbeat"}).Add();
      if (!registry_.Heartbeat(connection, update.heartbeat(), loop_.clock().Now())) {
        status = absl::FailedPreconditionError("heartbeat before attach");
      }
      if (const std::optional<Worker> worker = registry_.Find(connection))
        budgets_.Heard(worker->id, worker->incarnation, update.heartbeat());
      PublishSoon();
      break;
    case v1::WorkerUpdate::kEvents:
      metrics_.counter(telemetry::kWorkerUpdates, {"events"}).Add();
      status = OnEvents(connection, update.events());
      break;
    case v1::WorkerUpdate::UPDATE_NOT_SET:
      break;  // something newer than this process
  }
  if (!status.ok()) Disconnect(connection, status);
}

absl::Status CacheManagerService::OnAttach(ConnectionId connection, const v1::WorkerInfo& info) {
  std::optional<ConnectionId> replaced;
  SLUICE_RETURN_IF_ERROR(registry_.Attach(connection, info, loop_.clock().Now(), &replaced));
  SLUICE_LOG(kInfo) << "worker attached" << Field("worker", info.worker_id())
                    << Field("address", info.grpc_address()) << Field("model", info.model())
                    << Field("replaces", replaced.has_value());
  if (replaced) {
    index_.RemoveWorker(WorkerId(info.worker_id()));
    Disconnect(*replaced, absl::AbortedError(
                              absl::StrCat(info.worker_id(), " attached on another connection")));
  }
  const auto stream = workers_.find(connection);
  if (stream != workers_.end()) {
    v1::ManagerUpdate update;
    update.mutable_ack()->set_heartbeat_ms(
        static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.heartbeat)));
    stream->second->Write(std::move(update));
  }
  // After the one it replaces was told off.
  budgets_.Attached(info);
  PublishView();
  return absl::OkStatus();
}

absl::Status CacheManagerService::OnEvents(ConnectionId connection, const v1::BlockEvents& events) {
  const std::optional<Worker> worker = registry_.Find(connection);
  if (!worker) return absl::FailedPreconditionError("block events before attach");
  SLUICE_ASSIGN_OR_RETURN(const std::vector<kv::BlockChange> changes, rpc::ToChanges(events));
  if (events.snapshot()) {
    index_.ApplySnapshot(worker->id, worker->incarnation, events.sequence(), changes);
    return absl::OkStatus();
  }
  const auto applied =
      index_.ApplyChanges(worker->id, worker->incarnation, events.sequence(), changes);
  if (applied == cluster::BlockIndex::Applied::kNeedSnapshot) {
    v1::ManagerUpdate update;
    update.mutable_snapshot();
    const auto stream = workers_.find(connection);
    if (stream != workers_.end()) stream->second->Write(std::move(update));
  }
  return absl::OkStatus();
}

void CacheManagerService::Disconnect(ConnectionId connection, const absl::Status& why) {
  if (const std::optional<Worker> worker = registry_.Detach(connection)) {
    SLUICE_LOG(kInfo) << "worker gone" << Field("worker", worker->id)
                      << Field("why", why.ToString());
    index_.RemoveWorker(worker->id);
    budgets_.Gone(worker->id, worker->incarnation, loop_.clock().Now());
    PublishView();
  }
  const auto stream = workers_.find(connection);
  if (stream == workers_.end()) return;
  stream->second->Close(why);
  workers_.erase(stream);
}

void CacheManagerService::PublishView() {
  if (registry_.version() == published_version_) return;
  published_version_ = registry_.version();
  const v1::WorkerView view = registry_.View();
  std::erase_if(watchers_, [&view](const auto& watcher) { return !watcher->Write(view); });
  CountWorkers(view);
}

void CacheManagerService::CountWorkers(const v1::WorkerView& view) {
  constexpr std::array<const char*, 3> kRoles = {"prefill", "decode", "both"};
  constexpr std::array<const char*, 3> kStates = {"ready", "not_ready", "draining"};
  std::array<std::array<int, 3>, 3> counts = {};
  for (const v1::WorkerEntry& worker : view.workers()) {
    const size_t role = worker.info().role() == v1::PREFILL  ? 0
                        : worker.info().role() == v1::DECODE ? 1
                                                             : 2;
    ++counts[role][worker.draining() ? 2 : worker.ready() ? 0 : 1];
  }
  for (size_t i = 0; i < kRoles.size(); ++i) {
    for (size_t j = 0; j < kStates.size(); ++j)
      metrics_.gauge(telemetry::kWorkers, {kRoles[i], kStates[j]}).Set(counts[i][j]);
  }
}

}  // namespace sluice::cache_manager
