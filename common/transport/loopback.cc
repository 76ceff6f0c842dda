#include "transport/loopback.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/loopback_state.h"

namespace sluice::transport {

LoopbackNetwork::LoopbackNetwork(const Options& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      state_(std::make_unique<LoopbackState>(options.seed, options.limits, options.link)) {}

LoopbackNetwork::~LoopbackNetwork() = default;

absl::StatusOr<std::unique_ptr<LoopbackTransport>> LoopbackNetwork::CreateTransport() {
  int event_fd = -1;
  if (options_.self_driven) {
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd < 0)
      return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  MutexLock lock(mutex_);
  const NodeId node = state_->AddNode(event_fd);
  return std::unique_ptr<LoopbackTransport>(new LoopbackTransport(*this, node, event_fd));
}

absl::Time LoopbackNetwork::NextEventTime() const {
  MutexLock lock(mutex_);
  return state_->NextEventTime();
}

void LoopbackNetwork::AdvanceTo(absl::Time now) {
  MutexLock lock(mutex_);
  state_->AdvanceTo(now);
}

void LoopbackNetwork::RunDueIfSelfDriven() {
  if (options_.self_driven) state_->AdvanceTo(clock_.Now());
}

void LoopbackNetwork::SetLink(NodeId from, NodeId to, const LinkPlan& plan) {
  MutexLock lock(mutex_);
  state_->SetLink(from, to, plan);
}

void LoopbackNetwork::Clog(NodeId from, NodeId to) {
  MutexLock lock(mutex_);
  state_->Clog(from, to);
}

void LoopbackNetwork::Unclog(NodeId from, NodeId to) {
  MutexLock lock(mutex_);
  state_->Unclog(from, to, clock_.Now());
  RunDueIfSelfDriven();
}

void LoopbackNetwork::Cut(NodeId from, NodeId to) {
  MutexLock lock(mutex_);
  state_->SetCut(from, to, true);
}

void LoopbackNetwork::Mend(NodeId from, NodeId to) {
  MutexLock lock(mutex_);
  state_->SetCut(from, to, false);
}

void LoopbackNetwork::Disconnect(NodeId a, NodeId b) {
  MutexLock lock(mutex_);
  state_->Disconnect(a, b, clock_.Now());
  RunDueIfSelfDriven();
}

void LoopbackNetwork::SetPaused(NodeId node, bool paused) {
  MutexLock lock(mutex_);
  state_->SetPaused(node, paused);
}

void LoopbackNetwork::Crash(NodeId node) {
  MutexLock lock(mutex_);
  state_->Crash(node, clock_.Now());
  RunDueIfSelfDriven();
}

LoopbackTransport::LoopbackTransport(LoopbackNetwork& network, NodeId node, int event_fd)
    : network_(network),
      node_(node),
      event_fd_(event_fd),
      capabilities_{"loopback", /*true_get=*/true, network.options_.limits.message_bytes_max} {}

LoopbackTransport::~LoopbackTransport() {
  {
    MutexLock lock(network_.mutex_);
    network_.state_->RemoveNode(node_, network_.clock_.Now());
    network_.RunDueIfSelfDriven();
  }
  if (event_fd_ >= 0) close(event_fd_);
}

std::string LoopbackTransport::LocalAddress() const {
  MutexLock lock(network_.mutex_);
  return network_.state_->AddressOf(node_);
}

absl::StatusOr<Region> LoopbackTransport::AllocateRegion(size_t bytes) {
  MutexLock lock(network_.mutex_);
  return network_.state_->AllocateRegion(node_, bytes);
}

absl::StatusOr<EndpointId> LoopbackTransport::Connect(absl::string_view address) {
  MutexLock lock(network_.mutex_);
  absl::StatusOr<EndpointId> endpoint =
      network_.state_->Connect(node_, address, network_.clock_.Now());
  network_.RunDueIfSelfDriven();
  return endpoint;
}

absl::Status LoopbackTransport::Send(EndpointId to, absl::string_view header,
                                     absl::Span<const uint8_t> payload) {
  MutexLock lock(network_.mutex_);
  absl::Status status = network_.state_->Send(node_, to, header, payload, network_.clock_.Now());
  network_.RunDueIfSelfDriven();
  return status;
}

absl::StatusOr<FetchId> LoopbackTransport::Fetch(EndpointId from, absl::string_view remote_key,
                                                 uint64_t offset, absl::Span<uint8_t> local) {
  MutexLock lock(network_.mutex_);
  absl::StatusOr<FetchId> fetch =
      network_.state_->StartFetch(node_, from, remote_key, offset, local, network_.clock_.Now());
  network_.RunDueIfSelfDriven();
  return fetch;
}

void LoopbackTransport::Close(EndpointId endpoint) {
  MutexLock lock(network_.mutex_);
  network_.state_->Close(node_, endpoint, network_.clock_.Now());
  network_.RunDueIfSelfDriven();
}

bool LoopbackTransport::Poll(Events& events) {
  size_t left = 0;
  {
    MutexLock lock(network_.mutex_);
    uint64_t count = 0;
    // Emptied before looking, so that a later push wakes the loop again. EAGAIN only says that it
    // was empty.
    if (event_fd_ >= 0 && read(event_fd_, &count, sizeof(count)) < 0) SLUICE_CHECK(errno == EAGAIN);
    network_.RunDueIfSelfDriven();
    left = network_.state_->InboundCount(node_);
  }
  bool any = false;
  // One at a time, without the lock: a callback may call the transport, which may withdraw what was
  // queued.
  for (; left > 0; --left) {
    std::optional<LoopbackInbound> inbound;
    {
      MutexLock lock(network_.mutex_);
      inbound = network_.state_->PopInbound(node_);
    }
    if (!inbound) break;
    any = true;
    switch (inbound->kind) {
      case LoopbackInbound::Kind::kMessage:
        events.OnMessage(inbound->endpoint, inbound->message->header, inbound->message->payload);
        break;
      case LoopbackInbound::Kind::kFetchDone:
        events.OnFetchDone(inbound->fetch, inbound->status);
        break;
      case LoopbackInbound::Kind::kPeerDown:
        events.OnPeerDown(inbound->endpoint, inbound->status);
        break;
    }
  }
  return any;
}

bool LoopbackTransport::PrepareSleep() {
  MutexLock lock(network_.mutex_);
  return network_.state_->InboundCount(node_) == 0;
}

}  // namespace sluice::transport
