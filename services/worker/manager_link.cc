#include "services/worker/manager_link.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "grpcpp/channel.h"
#include "rpc/bidi_stream.h"
#include "rpc/channel_pool.h"
#include "rpc/domain.h"
#include "sluice/v1/cache.grpc.pb.h"

namespace sluice::services {
namespace {

constexpr absl::Duration kHeartbeatDefault = absl::Milliseconds(500);
// How stale the manager's view of this worker's blocks may be while it works; an idle worker looks
// once a heartbeat.
constexpr absl::Duration kEventsPeriod = absl::Milliseconds(100);
constexpr absl::Duration kReconnectMin = absl::Milliseconds(100);
constexpr absl::Duration kReconnectMax = absl::Seconds(2);

using Call = rpc::BidiCall<v1::WorkerUpdate, v1::ManagerUpdate>;

// All state belongs to the loop.
class Link final : public ManagerLink {
 public:
  Link(ManagerLinkOptions options, kv::PagePool& pool, kv::PrefixIndex& index, Loop& loop)
      : options_(std::move(options)),
        pool_(pool),
        index_(index),
        loop_(loop),
        stub_(v1::CacheManager::NewStub(rpc::MakeChannel(options_.address, options_.channel))) {
    MutexLock lock(alive_->mutex);
    alive_->link = this;
  }
  ~Link() override {
    MutexLock lock(alive_->mutex);
    alive_->link = nullptr;
  }

  void Begin() {
    loop_.Post([this] { Connect(); });
  }
  void SendHeartbeat() override {
    loop_.Post([this] { Heartbeat(); });
  }

 private:
  // gRPC may still deliver after the link has gone.
  struct Alive {
    Mutex mutex;
    Link* link SLUICE_GUARDED_BY(mutex) = nullptr;
  };

  // Carries the manager's messages to the loop. `number` tells an old connection's messages from
  // the present one's.
  class Reader final : public rpc::StreamReader<v1::ManagerUpdate> {
   public:
    Reader(std::shared_ptr<Alive> alive, uint64_t number)
        : alive_(std::move(alive)), number_(number) {}
    void OnMessage(v1::ManagerUpdate update) override {
      Post([update = std::move(update)](Link& link) { link.OnUpdate(update); });
    }
    void OnEnd(const absl::Status& status) override {
      Post([status](Link& link) { link.OnEnd(status); });
    }

   private:
    template <typename Task>
    void Post(Task task) {
      MutexLock lock(alive_->mutex);
      if (alive_->link == nullptr) return;
      alive_->link->loop_.Post([link = alive_->link, number = number_, task = std::move(task)] {
        if (number == link->number_) task(*link);
      });
    }
    const std::shared_ptr<Alive> alive_;
    const uint64_t number_;
  };

  void Connect() {
    call_ = std::make_unique<Call>(
        rpc::CallOptions{},
        [this](auto* context, auto* reactor) { stub_->async()->Attach(context, reactor); },
        std::make_unique<Reader>(alive_, ++number_));
    v1::WorkerUpdate update;
    *update.mutable_attach() = options_.info;
    call_->Write(std::move(update));
  }

  void OnUpdate(const v1::ManagerUpdate& update) {
    if (update.has_ack() && !attached_) {
      attached_ = true;
      budgets_version_ = 0;  // another manager counts anew
      reconnect_ = kReconnectMin;
      if (update.ack().heartbeat_ms() > 0)
        period_ = absl::Milliseconds(update.ack().heartbeat_ms());
      SLUICE_LOG(kInfo) << "registered with the cache-manager"
                        << Field("address", options_.address);
      options_.on_connection(true);
      SendSnapshot();
      HeartbeatAgain(number_);
      EventsAgain(number_);
    }
    if (update.has_snapshot() && attached_) SendSnapshot();
    if (update.has_budgets() && attached_) ApplyBudgets(update.budgets());
  }

  void ApplyBudgets(const v1::BudgetUpdate& update) {
    pool_.SetBudgets(rpc::ToBudgets(update));
    index_.TrimToLimits();
    budgets_version_ = update.version();
    loop_.Cancel(budgets_timer_);
    budgets_timer_ = loop_.RunAt(loop_.clock().Now() + absl::Milliseconds(update.lease_ms()),
                                 [this] { pool_.ExpireBudgets(); });
  }

  void OnEnd(const absl::Status& status) {
    const bool lost = std::exchange(attached_, false);
    const bool refused = absl::IsAlreadyExists(status);
    const bool refused_before = std::exchange(refused_, refused);
    if (refused && !refused_before) {
      SLUICE_LOG(kError)
          << "refused by the cache-manager, so no router sees this worker; trying again"
          << Field("address", options_.address) << Field("status", status.ToString());
    } else if (!refused && (lost || refused_before || !warned_)) {
      warned_ = true;
      SLUICE_LOG(kWarning) << "no cache-manager; serving without it and trying again"
                           << Field("address", options_.address)
                           << Field("status", status.ToString());
    }
    options_.on_connection(false);
    call_.reset();
    loop_.RunAt(loop_.clock().Now() + reconnect_, [this] { Connect(); });
    reconnect_ = std::min(2 * reconnect_, kReconnectMax);
  }

  void Heartbeat() {
    if (!attached_) return;
    v1::WorkerUpdate update;
    *update.mutable_heartbeat() = options_.heartbeat();
    update.mutable_heartbeat()->set_budgets_version(budgets_version_);
    rpc::AddUsage(pool_.TakeTenants(), pool_.layout().page_bytes(), update.mutable_heartbeat());
    call_->Write(std::move(update));
  }

  void HeartbeatAgain(uint64_t number) {
    if (!attached_ || number != number_) return;
    Heartbeat();
    loop_.RunAt(loop_.clock().Now() + period_, [this, number] { HeartbeatAgain(number); });
  }

  void SendSnapshot() {
    uint64_t last = 0;
    const std::vector<kv::BlockChange> blocks = index_.Snapshot(&last);
    v1::WorkerUpdate update;
    v1::BlockEvents* events = update.mutable_events();
    events->set_snapshot(true);
    events->set_sequence(last);
    rpc::AddChanges(blocks, events);
    call_->Write(std::move(update));
  }

  void EventsAgain(uint64_t number) {
    if (!attached_ || number != number_) return;
    const bool sent = SendEvents();
    const absl::Duration pause =
        sent || options_.busy() ? std::min(kEventsPeriod, period_) : period_;
    loop_.RunAt(loop_.clock().Now() + pause, [this, number] { EventsAgain(number); });
  }

  // False when there was nothing to send.
  bool SendEvents() {
    uint64_t first = 0;
    const std::vector<kv::BlockChange> changes = index_.TakeChanges(&first);
    if (changes.empty()) return false;
    // The first ones may be in the last snapshot already; the manager tells by their numbers.
    v1::WorkerUpdate update;
    update.mutable_events()->set_sequence(first);
    rpc::AddChanges(changes, update.mutable_events());
    call_->Write(std::move(update));
    return true;
  }

  const ManagerLinkOptions options_;
  kv::PagePool& pool_;
  kv::PrefixIndex& index_;
  Loop& loop_;
  const std::unique_ptr<v1::CacheManager::Stub> stub_;
  const std::shared_ptr<Alive> alive_ = std::make_shared<Alive>();
  std::unique_ptr<Call> call_;
  uint64_t number_ = 0;
  bool attached_ = false;
  bool warned_ = false;
  bool refused_ = false;  // the last connection ended with the manager's refusal
  uint64_t budgets_version_ = 0;
  TimerId budgets_timer_ = kNoTimer;
  absl::Duration period_ = kHeartbeatDefault;
  absl::Duration reconnect_ = kReconnectMin;
};

}  // namespace

std::unique_ptr<ManagerLink> ManagerLink::Start(ManagerLinkOptions options, kv::PagePool& pool,
                                                kv::PrefixIndex& index, Loop& loop) {
  auto link = std::make_unique<Link>(std::move(options), pool, index, loop);
  link->Begin();
  return link;
}

}  // namespace sluice::services
