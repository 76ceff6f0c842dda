// Transport over UCX: messages are active messages, fetches are gets from memory that UCX
// allocated.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "transport/buffer_pool.h"
#include "transport/private_memory.h"
#include "transport/transport.h"

namespace sluice::transport {

struct UcxOptions {
  // kShm: peers on the same host that share /proc and /dev/shm. kRdma: InfiniBand or RoCE. Both
  // fetch with a true get. kTcp: messages only, because put and get are slow there; anybody who
  // reaches the port is trusted.
  enum class Kind { kShm, kTcp, kRdma };
  Kind kind = Kind::kShm;
  // Devices that UCX may listen on: "lo", "eth0", "mlx5_0:1".
  std::string net_devices = "lo";
  // How often a silent peer is looked at.
  absl::Duration keepalive = absl::Seconds(1);
  Limits limits;
};

class UcxWaker;
class UcxWorker;
struct UcxArrival;
struct UcxEndpoint;
struct UcxOperation;
struct UcxPrefix;
struct UcxRemoteRegion;

// One connection per peer transport: Connect from both ends at once gives one. A peer that has no
// endpoint left ignores us.
class UcxTransport final : public Transport {
 public:
  // Sets an environment variable that UCX reads from nowhere else: call it before other threads
  // run. Errors: UNAVAILABLE when this host lacks the transport or the device.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const UcxOptions& options);
  ~UcxTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override;
  absl::StatusOr<Region> AllocateRegion(size_t bytes) override;
  absl::StatusOr<EndpointId> Connect(absl::string_view address) override;
  absl::Status Send(EndpointId to, absl::string_view header,
                    absl::Span<const uint8_t> payload) override;
  absl::StatusOr<FetchId> Fetch(EndpointId from, absl::string_view remote_key, uint64_t offset,
                                absl::Span<uint8_t> local) override;
  void Close(EndpointId endpoint) override;
  bool Poll(Events& events) override;
  int EventFd() const override;
  bool PrepareSleep() override;

  // kMalformed: messages that were no messages of ours, or of a connection that has ended.
  uint64_t refused(Refusal reason) const override {
    return reason == Refusal::kMalformed ? dropped_messages_.load(std::memory_order_relaxed) : 0;
  }

 private:
  struct Report {
    enum class Kind { kMessage, kFetchDone, kPeerDown };
    Kind kind = Kind::kMessage;
    EndpointId endpoint;
    std::unique_ptr<UcxArrival> message;
    size_t header_bytes = 0;
    FetchId fetch;
    absl::Status status;
  };
  struct Callbacks;  // what UCX calls

  UcxTransport(const UcxOptions& options, std::unique_ptr<UcxWorker> worker);
  absl::Status Init();

  // Verbs: ucx_transport.cc.
  UcxEndpoint* FindOpen(EndpointId id);
  absl::StatusOr<UcxEndpoint*> OpenEndpoint(const Id128& peer, const std::string& worker_address);
  void SendMessage(UcxEndpoint& endpoint, UcxPrefix prefix, PooledBuffer data);
  void SendHello(UcxEndpoint& endpoint);
  absl::StatusOr<UcxRemoteRegion*> FindRegion(UcxEndpoint& endpoint, absl::string_view remote_key);
  // Called once for every operation: by UCX, or at once when it did not have to wait.
  void Complete(std::unique_ptr<UcxOperation> operation, const absl::Status& status);
  void Deliver(Events& events, Report report);

  // Endings: ucx_close.cc.
  // Notes that the connection is unusable. Safe inside UCX's callbacks; the next Poll closes it.
  void Fail(UcxEndpoint& endpoint, const absl::Status& reason);
  void CloseFailed();
  void BeginClose(UcxEndpoint& endpoint, const absl::Status& reason);
  // Reports connections that have ended and forgets those that UCX has let go of.
  void FinishClosed();

  // What peers send: ucx_receive.cc.
  void HandleArrivals();
  absl::Status HandleArrival(std::unique_ptr<UcxArrival> arrival);
  absl::StatusOr<UcxEndpoint*> EndpointOf(const UcxPrefix& prefix);
  absl::Status Accept(UcxEndpoint& endpoint, const UcxPrefix& prefix,
                      std::unique_ptr<UcxArrival> arrival);
  absl::Status StartReceive(UcxEndpoint& endpoint, uint64_t sequence,
                            std::unique_ptr<UcxArrival> arrival);
  void DeliverInOrder(UcxEndpoint& endpoint);

  const UcxOptions options_;
  BufferPool buffers_;
  std::unique_ptr<UcxWorker> worker_;
  std::unique_ptr<UcxWaker> waker_;
  const Id128 id_;
  Capabilities capabilities_;
  absl::btree_map<EndpointId, std::unique_ptr<UcxEndpoint>> endpoints_;
  absl::flat_hash_map<Id128, UcxEndpoint*> open_;  // by peer
  std::vector<EndpointId> failed_;                 // told by UCX, not yet closed
  std::deque<std::unique_ptr<UcxArrival>> arrivals_;
  std::deque<Report> reports_;
  std::vector<PrivateMemory> private_regions_;  // without a true get
  size_t regions_ = 0;
  size_t fetches_ = 0;          // started and not yet reported
  size_t queued_messages_ = 0;  // of open endpoints
  size_t closing_ = 0;          // endpoints that UCX has not let go of
  uint64_t activity_ = 0;       // callbacks of UCX, to see whether polling helps
  size_t idle_looks_ = 0;       // since the last one
  uint64_t last_endpoint_ = 0;
  uint64_t last_fetch_ = 0;
  std::atomic<uint64_t> dropped_messages_ = 0;
};

}  // namespace sluice::transport
