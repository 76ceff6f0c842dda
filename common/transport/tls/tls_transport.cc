#include "transport/tls/tls_transport.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "transport/tls/tls_connection.h"
#include "transport/tls/tls_context.h"
#include "transport/tls/tls_link.h"
#include "transport/tls/tls_wire.h"

namespace sluice::transport {
namespace {

// Serials of epoll that are no links.
constexpr uint64_t kListener = 0, kTimer = 1;
constexpr int kEventsMax = 64;
// Read from one peer in one Poll, so that a flood leaves the others their turn.
constexpr size_t kReadBytesMax = 4u << 20;
constexpr size_t kKeptBufferBytes = 64u << 20;

absl::Status NotConnected(EndpointId id) {
  return absl::NotFoundError(absl::StrCat("endpoint ", id.value(), " is not connected"));
}

Id128 RandomId() {
  SecureRandom random;
  return random.NextId128();
}

}  // namespace

TlsTransport::TlsTransport(const TlsOptions& options)
    : options_(options), id_(RandomId()), buffers_(kKeptBufferBytes), last_serial_(kTimer) {
  capabilities_.name = "tls";
  capabilities_.message_bytes_max = options.limits.message_bytes_max;
}

TlsTransport::~TlsTransport() = default;

absl::StatusOr<std::unique_ptr<TlsTransport>> TlsTransport::Create(const TlsOptions& options) {
  std::unique_ptr<TlsTransport> transport(new TlsTransport(options));
  SLUICE_RETURN_IF_ERROR(transport->Init());
  return transport;
}

absl::Status TlsTransport::Init() {
  SLUICE_ASSIGN_OR_RETURN(context_, TlsContext::Create(options_.files));
  SLUICE_ASSIGN_OR_RETURN(address_, SocketAddress::Parse(options_.listen));
  SLUICE_ASSIGN_OR_RETURN(listener_, ListenTcp(address_));
  if (!options_.advertise.empty()) address_.host = options_.advertise;
  SLUICE_ASSIGN_OR_RETURN(address_, SocketAddress::Parse(address_.ToString()));
  if (address_.IsAny()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the transport listens on every address (", options_.listen,
                     "); set transport.advertise to the one that other workers reach"));
  }
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!epoll_ || !timer_ || !spare_ || !Watch(listener_.get(), kListener, EPOLLIN, EPOLL_CTL_ADD) ||
      !Watch(timer_.get(), kTimer, EPOLLIN, EPOLL_CTL_ADD)) {
    return absl::ResourceExhaustedError(absl::StrCat("descriptors of tls: ", strerror(errno)));
  }
  return absl::OkStatus();
}

bool TlsTransport::Watch(int fd, uint64_t serial, uint32_t interest, int operation) {
  epoll_event event{};
  event.events = interest;
  event.data.u64 = serial;
  return epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

std::string TlsTransport::LocalAddress() const {
  context_->Current();  // whoever connects will be shown that one
  return TlsAddress{id_, address_.host, address_.port, context_->own().ToUri()}.Encode();
}

absl::StatusOr<Region> TlsTransport::AllocateRegion(size_t bytes) {
  if (regions_.size() >= options_.limits.regions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.limits.regions_max, " regions are in use"));
  }
  SLUICE_ASSIGN_OR_RETURN(PrivateMemory memory, PrivateMemory::Map(bytes));
  Region region;
  region.memory = memory.bytes();
  regions_.push_back(std::move(memory));
  return region;
}

absl::StatusOr<FetchId> TlsTransport::Fetch(EndpointId from, absl::string_view /*remote_key*/,
                                            uint64_t /*offset*/, absl::Span<uint8_t> /*local*/) {
  return absl::UnimplementedError(
      absl::StrCat("tls cannot fetch from endpoint ", from.value(), "; offers carry their bytes"));
}

TlsEndpoint* TlsTransport::FindOpen(EndpointId id) {
  const auto it = endpoints_.find(id);
  return it == endpoints_.end() || it->second->ended ? nullptr : it->second.get();
}

absl::StatusOr<TlsEndpoint*> TlsTransport::AddEndpoint(const Id128& peer,
                                                       const std::string& identity) {
  if (endpoints_.size() >= options_.limits.endpoints_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.limits.endpoints_max, " endpoints are in use"));
  }
  auto endpoint = std::make_unique<TlsEndpoint>();
  endpoint->id = EndpointId(++last_endpoint_);
  endpoint->peer = peer;
  endpoint->identity = identity;
  TlsEndpoint* raw = endpoint.get();
  endpoints_[raw->id] = std::move(endpoint);
  open_[peer] = raw;
  return raw;
}

absl::StatusOr<EndpointId> TlsTransport::Connect(absl::string_view bytes) {
  SLUICE_ASSIGN_OR_RETURN(const TlsAddress address, TlsAddress::Decode(bytes));
  if (address.transport == id_)
    return absl::InvalidArgumentError("a transport does not connect to itself");
  const auto existing = open_.find(address.transport);
  if (existing != open_.end()) return existing->second->id;
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, DialTcp({address.host, address.port}));
  SLUICE_ASSIGN_OR_RETURN(TlsEndpoint * endpoint, AddEndpoint(address.transport, address.identity));
  const absl::Status added = AddLink(std::move(fd), /*dialer=*/true, endpoint);
  if (!added.ok()) {
    open_.erase(address.transport);
    endpoints_.erase(endpoint->id);
    return added;
  }
  return endpoint->id;
}

absl::Status TlsTransport::Send(EndpointId to, absl::string_view header,
                                absl::Span<const uint8_t> payload) {
  TlsEndpoint* endpoint = FindOpen(to);
  if (endpoint == nullptr) return NotConnected(to);
  const size_t bytes = header.size() + payload.size();
  SLUICE_RETURN_IF_ERROR(
      CheckSend(options_.limits, to, bytes, endpoint->queue.size(), endpoint->queued_bytes));
  TlsFrame frame;
  frame.header_bytes = static_cast<uint32_t>(header.size());
  frame.payload_bytes = payload.size();
  const auto head = frame.Encode();
  PooledBuffer buffer = buffers_.Take(head.size() + bytes);
  std::memcpy(buffer.data(), head.data(), head.size());
  if (!header.empty()) std::memcpy(buffer.data() + head.size(), header.data(), header.size());
  if (!payload.empty()) {
    std::memcpy(buffer.data() + head.size() + header.size(), payload.data(), payload.size());
  }
  endpoint->queued_bytes += bytes;
  endpoint->queue.push_back(std::move(buffer));
  // Behind messages that wait it would wait too.
  if (endpoint->open && endpoint->queue.size() == 1) Pump(*endpoint);
  return absl::OkStatus();
}

void TlsTransport::Pump(TlsEndpoint& endpoint) {
  TlsLink& link = *links_.at(endpoint.link);
  absl::StatusOr<bool> done = true;
  while (!endpoint.queue.empty()) {
    const PooledBuffer& first = endpoint.queue.front();
    done = link.connection->Write({first.data(), first.size()}, endpoint.written);
    if (!done.ok() || !*done) break;
    endpoint.queued_bytes -= first.size() - TlsFrame::kBytes;
    endpoint.written = 0;
    endpoint.queue.pop_front();
  }
  if (done.ok()) {
    const absl::StatusOr<bool> flushed = link.connection->Flush();
    done = !flushed.ok() ? flushed : *flushed && *done;
  }
  if (!done.ok()) {
    failed_.emplace_back(link.serial, done.status());
    return;
  }
  const uint32_t interest = EPOLLIN | (*done ? 0u : EPOLLOUT);
  if (interest == link.interest) return;
  link.interest = interest;
  SLUICE_CHECK(Watch(link.connection->fd(), link.serial, interest, EPOLL_CTL_MOD))
      << strerror(errno);
}

void TlsTransport::End(TlsEndpoint& endpoint, const absl::Status& reason) {
  if (endpoint.ended) return;
  endpoint.ended = true;
  endpoint.reason = reason;
  endpoint.queue.clear();
  open_.erase(endpoint.peer);
  ended_.push_back(endpoint.id);
  if (endpoint.link != 0) Remove(endpoint.link);
}

void TlsTransport::Close(EndpointId id) {
  TlsEndpoint* endpoint = FindOpen(id);
  if (endpoint != nullptr) End(*endpoint, absl::CancelledError("closed here"));
}

bool TlsTransport::Poll(Events& events) {
  epoll_event ready[kEventsMax];
  const int count = epoll_wait(epoll_.get(), ready, kEventsMax, 0);
  bool any = count > 0 || !unread_.empty();
  // Those first: their descriptors may stay silent.
  for (const uint64_t serial : std::exchange(unread_, {})) ReadFrom(serial, events);
  for (int i = 0; i < count; ++i) {
    switch (ready[i].data.u64) {
      case kListener:
        AcceptAll();
        break;
      case kTimer:
        Tick();
        break;
      default:
        Serve(ready[i].data.u64, ready[i].events, events);
    }
  }
  for (const auto& [serial, status] : std::exchange(failed_, {})) {
    const auto it = links_.find(serial);
    if (it != links_.end()) Drop(*it->second, status);
  }
  return ReportEnded(events) || any;
}

bool TlsTransport::ReportEnded(Events& events) {
  const size_t count = ended_.size();
  for (size_t i = 0; i < count; ++i) {
    const auto it = endpoints_.find(ended_.front());
    ended_.pop_front();
    const std::unique_ptr<TlsEndpoint> endpoint = std::move(it->second);
    endpoints_.erase(it);
    events.OnPeerDown(endpoint->id, endpoint->reason);
  }
  return count > 0;
}

void TlsTransport::Serve(uint64_t serial, uint32_t what, Events& events) {
  const auto it = links_.find(serial);
  if (it == links_.end()) return;
  TlsLink& link = *it->second;
  if (!link.encrypted) {
    const absl::StatusOr<bool> done = link.connection->Handshake();
    absl::Status status = done.status();
    if (done.ok() && *done) {
      link.encrypted = true;
      status = Introduce(link);
    } else if (done.ok() && (what & EPOLLOUT) != 0 && link.interest != EPOLLIN) {
      // Connected; from now on the peer has the word.
      link.interest = EPOLLIN;
      if (!Watch(link.connection->fd(), serial, EPOLLIN, EPOLL_CTL_MOD)) {
        status = absl::ResourceExhaustedError(strerror(errno));
      }
    }
    if (!status.ok()) return Drop(link, status);
    if (!link.encrypted) return;
  } else if ((what & EPOLLOUT) != 0 && link.open) {
    Pump(*link.endpoint);
  }
  ReadFrom(serial, events);
}

void TlsTransport::ReadFrom(uint64_t serial, Events& events) {
  size_t budget = kReadBytesMax;
  while (true) {
    // Looked up each time: an event may have closed it.
    const auto it = links_.find(serial);
    if (it == links_.end() || !it->second->encrypted) return;
    TlsLink& link = *it->second;
    const size_t body_bytes_max = link.open ? options_.limits.message_bytes_max : kTlsHelloBytesMax;
    auto message = link.connection->Read(body_bytes_max, budget);
    if (!message.ok()) return Drop(link, message.status());
    if (!message->has_value()) {
      if (budget == 0 || link.connection->HoldsInput()) unread_.push_back(serial);
      return;
    }
    const absl::Status handled = HandleFrame(link, **message, events);
    if (!handled.ok()) {
      const auto still = links_.find(serial);
      if (still != links_.end()) Drop(*still->second, handled);
      return;
    }
  }
}

bool TlsTransport::PrepareSleep() { return unread_.empty() && failed_.empty() && ended_.empty(); }

uint64_t TlsTransport::refused(Refusal reason) const {
  return refused_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
}

}  // namespace sluice::transport
