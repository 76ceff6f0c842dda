// A network inside one process. In the simulation and in tests it runs on virtual time and
// misbehaves on purpose; in production it joins workers that share a process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "transport/transport.h"

namespace sluice::transport {

class LoopbackState;
class LoopbackTransport;

// A transport's place in the network, counted from 1 in order of creation; never reused.
using NodeId = StrongId<struct NodeIdTag, uint64_t>;

// How one direction of a link behaves. Probabilities are per message or fetch, delays are drawn
// uniformly.
struct LinkPlan {
  absl::Duration delay_min = absl::ZeroDuration();
  absl::Duration delay_max = absl::ZeroDuration();
  double loss = 0;
  double duplicate = 0;
  // A reordered message (and every duplicate) is late by up to `reorder_delay_max` and does not
  // hold up those behind it.
  double reorder = 0;
  absl::Duration reorder_delay_max = absl::Milliseconds(100);
  // A fetch that ends with an error although the peer lives.
  double fetch_error = 0;
  // A fetch whose completion is reported up to `fetch_late_max` after its bytes have landed.
  double fetch_late = 0;
  absl::Duration fetch_late_max = absl::Seconds(1);
  // The end of a connection is noticed after this time, or, with probability `down_lost`, only when
  // something is sent on it.
  absl::Duration detect_min = absl::ZeroDuration();
  absl::Duration detect_max = absl::ZeroDuration();
  double down_lost = 0;
  // Added to a fetch's delay; 0 means unlimited.
  double bytes_per_second = 0;
};

// Connects the transports that it creates. Thread-safe; transports must be destroyed before it.
// A message is an event in time: the driver asks NextEventTime(), sets its clock, and calls
// AdvanceTo(). Everything follows from the seed and the order of calls. A fetch reads the peer's
// memory in two halves at two times, as a remote read does: a page that changes meanwhile is torn.
class LoopbackNetwork {
 public:
  struct Options {
    uint64_t seed = 1;
    Limits limits;
    LinkPlan link;  // of links without a plan of their own
    // Every call runs what is due by the clock, and transports get an event fd: for real threads
    // without a driver. Delays then end only when something calls the network.
    bool self_driven = false;
  };
  // `clock` must outlive the network.
  LoopbackNetwork(const Options& options, const Clock& clock);
  ~LoopbackNetwork();

  // Errors: RESOURCE_EXHAUSTED when there is no descriptor left for an event fd.
  absl::StatusOr<std::unique_ptr<LoopbackTransport>> CreateTransport();

  // InfiniteFuture when nothing is under way.
  absl::Time NextEventTime() const;
  // Runs what is due at `now`; transports then have it for their next Poll.
  void AdvanceTo(absl::Time now);

  // Faults. `from` and `to` name one direction; the other is a link of its own.
  void SetLink(NodeId from, NodeId to, const LinkPlan& plan);
  // A clogged link holds everything until Unclog; nothing is lost.
  void Clog(NodeId from, NodeId to);
  void Unclog(NodeId from, NodeId to);
  // A cut link loses everything silently; fetches that need it stay outstanding until their
  // connection ends.
  void Cut(NodeId from, NodeId to);
  void Mend(NodeId from, NodeId to);
  // Breaks all connections between two nodes: both get OnPeerDown after the detection delay.
  void Disconnect(NodeId a, NodeId b);
  // A paused node gets nothing from Poll. Its memory can still be read and its own fetches still
  // land.
  void SetPaused(NodeId node, bool paused);
  // The process is gone: its transport answers errors, peers notice after the detection delay.
  void Crash(NodeId node);

 private:
  friend class LoopbackTransport;
  void RunDueIfSelfDriven() SLUICE_REQUIRES(mutex_);

  const Options options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::unique_ptr<LoopbackState> state_ SLUICE_GUARDED_BY(mutex_);
};

// One node's end. Regions live until it is destroyed, also after a crash.
class LoopbackTransport final : public Transport {
 public:
  ~LoopbackTransport() override;
  LoopbackTransport(const LoopbackTransport&) = delete;
  LoopbackTransport& operator=(const LoopbackTransport&) = delete;

  NodeId node() const { return node_; }

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
  int EventFd() const override { return event_fd_; }
  bool PrepareSleep() override;

 private:
  friend class LoopbackNetwork;
  LoopbackTransport(LoopbackNetwork& network, NodeId node, int event_fd);

  LoopbackNetwork& network_;
  const NodeId node_;
  const int event_fd_;  // -1 unless the network is self-driven
  const Capabilities capabilities_;
};

}  // namespace sluice::transport
