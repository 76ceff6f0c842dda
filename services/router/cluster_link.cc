#include "services/router/cluster_link.h"

#include <utility>

#include "base/log.h"
#include "grpcpp/channel.h"
#include "rpc/channel_pool.h"
#include "rpc/client_call.h"
#include "sluice/v1/cache.grpc.pb.h"
#include "sluice/v1/rates.grpc.pb.h"

namespace sluice::router {
namespace {

constexpr absl::Duration kReconnectDelay = absl::Milliseconds(200);

class ManagerLink final : public ClusterLink {
 public:
  ManagerLink(const std::string& address, const rpc::ChannelOptions& channel,
              std::shared_ptr<Loop> loop, std::function<void(const v1::WorkerView&, bool)> on_view)
      : shared_(std::make_shared<Shared>(std::move(loop))) {
    shared_->address = address;
    shared_->on_view = std::move(on_view);
    const std::shared_ptr<grpc::Channel> made = rpc::MakeChannel(address, channel);
    shared_->stub = v1::CacheManager::NewStub(made);
    shared_->rates = v1::RateLeases::NewStub(made);
    shared_->loop->Post([shared = shared_] { Watch(shared); });
  }
  ~ManagerLink() override {
    shared_->closed = true;
    if (shared_->watch != nullptr) shared_->watch->Cancel();
  }

  void Lookup(v1::LookupRequest request, absl::Duration timeout,
              absl::AnyInvocable<void(absl::StatusOr<v1::LookupReply>)> done) override {
    Ask<v1::LookupRequest, v1::LookupReply>(
        std::move(request), timeout, std::move(done),
        [stub = shared_->stub](auto* context, auto* q, auto* r, auto finish) {
          stub->async()->Lookup(context, q, r, std::move(finish));
        });
  }
  void Lease(v1::LeaseRequest request, absl::Duration timeout,
             absl::AnyInvocable<void(absl::StatusOr<v1::LeaseReply>)> done) override {
    Ask<v1::LeaseRequest, v1::LeaseReply>(
        std::move(request), timeout, std::move(done),
        [stub = shared_->rates](auto* context, auto* q, auto* r, auto finish) {
          stub->async()->Lease(context, q, r, std::move(finish));
        });
  }
  bool connected() const override { return shared_->connected; }

 private:
  // `start` calls a stub; `done` runs on the loop.
  template <typename Request, typename Reply, typename Start>
  void Ask(Request request, absl::Duration timeout,
           absl::AnyInvocable<void(absl::StatusOr<Reply>)> done, Start start) {
    auto shared_done =
        std::make_shared<absl::AnyInvocable<void(absl::StatusOr<Reply>)>>(std::move(done));
    const std::shared_ptr<Loop> loop = shared_->loop;
    if (!shared_->connected) {
      loop->Post([shared_done] {
        (*shared_done)(absl::UnavailableError("no connection to the cache-manager"));
      });
      return;
    }
    rpc::StartUnary<Request, Reply>(std::move(request), {.timeout = timeout}, std::move(start),
                                    [loop, shared_done](absl::StatusOr<Reply> reply) {
                                      loop->Post([shared_done, reply = std::move(reply)]() mutable {
                                        (*shared_done)(std::move(reply));
                                      });
                                    });
  }

  // Outlives the link while a call is under way. Only touched on the loop.
  struct Shared {
    explicit Shared(std::shared_ptr<Loop> l) : loop(std::move(l)) {}
    const std::shared_ptr<Loop> loop;
    std::string address;
    std::function<void(const v1::WorkerView&, bool)> on_view;
    std::shared_ptr<v1::CacheManager::Stub> stub;
    std::shared_ptr<v1::RateLeases::Stub> rates;
    std::shared_ptr<rpc::ClientCall> watch;
    bool connected = false;
    bool closed = false;
  };

  class Reader final : public rpc::StreamReader<v1::WorkerView> {
   public:
    explicit Reader(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
    void OnMessage(v1::WorkerView view) override {
      shared_->loop->Post([shared = shared_, view = std::move(view)] {
        if (shared->closed) return;
        if (!shared->connected)
          SLUICE_LOG(kInfo) << "connected to the cache-manager"
                            << Field("address", shared->address);
        const bool fresh = !std::exchange(shared->connected, true);
        shared->on_view(view, fresh);
      });
    }
    void OnEnd(const absl::Status& status) override {
      shared_->loop->Post([shared = shared_, status] {
        if (shared->closed) return;
        if (std::exchange(shared->connected, false)) {
          SLUICE_LOG(kWarning) << "lost the cache-manager; serving with the last known workers"
                               << Field("status", status.ToString());
        }
        shared->loop->RunAt(shared->loop->clock().Now() + kReconnectDelay, [shared] {
          if (!shared->closed) Watch(shared);
        });
      });
    }

   private:
    const std::shared_ptr<Shared> shared_;
  };

  static void Watch(const std::shared_ptr<Shared>& shared) {
    shared->watch = rpc::StartServerStream<v1::WatchWorkersRequest, v1::WorkerView>(
        v1::WatchWorkersRequest(), {},
        [&shared](auto* context, auto* request, auto* reactor) {
          shared->stub->async()->WatchWorkers(context, request, reactor);
        },
        std::make_unique<Reader>(shared));
  }

  const std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<ClusterLink> ConnectToManager(
    const std::string& address, const rpc::ChannelOptions& channel, std::shared_ptr<Loop> loop,
    std::function<void(const v1::WorkerView&, bool)> on_view) {
  return std::make_unique<ManagerLink>(address, channel, std::move(loop), std::move(on_view));
}

}  // namespace sluice::router
