// How connections begin: accepting, who the peer is, which of two dials stays, and what is refused.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "transport/tls/tls_connection.h"
#include "transport/tls/tls_context.h"
#include "transport/tls/tls_link.h"
#include "transport/tls/tls_transport.h"
#include "transport/tls/tls_wire.h"

namespace sluice::transport {
namespace {

// Ticks of a handshake; each is a quarter of its time.
constexpr int kTicksMax = 5;
constexpr int kAcceptsMax = 64;

Refusal RefusalOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
      return Refusal::kUnauthenticated;
    case absl::StatusCode::kPermissionDenied:
      return Refusal::kForbidden;
    case absl::StatusCode::kDeadlineExceeded:
      return Refusal::kTimeout;
    case absl::StatusCode::kResourceExhausted:
      return Refusal::kCrowded;
    case absl::StatusCode::kUnavailable:
      return Refusal::kLeft;
    default:
      return Refusal::kMalformed;
  }
}

}  // namespace

void TlsTransport::AcceptAll() {
  for (int i = 0; i < kAcceptsMax; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd && (errno == EMFILE || errno == ENFILE)) {
      // Without this the one that waits would wake the loop for ever.
      spare_ = UniqueFd();
      const UniqueFd turned_away(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      refused_[static_cast<size_t>(Refusal::kCrowded)].fetch_add(1, std::memory_order_relaxed);
    }
    if (!spare_) spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) return;
    MakeRoomForHandshake();
    const absl::Status added = AddLink(std::move(fd), /*dialer=*/false, nullptr);
    if (!added.ok()) SLUICE_LOG(kWarning) << "tls: cannot accept" << Field("why", added.message());
  }
}

void TlsTransport::MakeRoomForHandshake() {
  size_t count = 0;
  TlsLink* oldest = nullptr;
  for (const auto& [serial, link] : links_) {
    if (link->open || link->dialed()) continue;
    ++count;
    if (oldest == nullptr) oldest = link.get();
  }
  if (count >= options_.handshakes_max) {
    Drop(*oldest,
         absl::ResourceExhaustedError(absl::StrCat("more than ", options_.handshakes_max,
                                                   " connections have not introduced themselves")));
  }
}

absl::Status TlsTransport::AddLink(UniqueFd fd, bool dialer, TlsEndpoint* endpoint) {
  TuneTcp(fd.get(), options_.keepalive);
  auto link = std::make_unique<TlsLink>();
  link->serial = ++last_serial_;
  link->endpoint = endpoint;
  // Writable says that a dial has ended.
  link->interest = dialer ? EPOLLIN | EPOLLOUT : EPOLLIN;
  const auto side = dialer ? TlsConnection::Side::kDialer : TlsConnection::Side::kAcceptor;
  SLUICE_ASSIGN_OR_RETURN(
      link->connection, TlsConnection::Create(std::move(fd), side, context_->Current(), buffers_));
  if (!Watch(link->connection->fd(), link->serial, link->interest, EPOLL_CTL_ADD)) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot watch a socket: ", strerror(errno)));
  }
  if (endpoint != nullptr) endpoint->link = link->serial;
  links_[link->serial] = std::move(link);
  ArmTicks();
  return absl::OkStatus();
}

absl::Status TlsTransport::Introduce(TlsLink& link) {
  SLUICE_ASSIGN_OR_RETURN(link.peer, link.connection->Peer());
  if (!link.dialed()) {
    if (options_.peers.Contains(link.peer.role)) return absl::OkStatus();
    return Refuse(
        link, absl::PermissionDeniedError(absl::StrCat(
                  link.peer.ToUri(), " may not move pages; expected ", options_.peers.Describe())));
  }
  if (link.peer.ToUri() != link.endpoint->identity) {
    return absl::PermissionDeniedError(absl::StrCat(PeerOf(link.connection->fd()), " presented ",
                                                    link.peer.ToUri(), "; expected ",
                                                    absl::CHexEscape(link.endpoint->identity)));
  }
  const TlsHello hello = {id_, link.endpoint->peer, link.endpoint->id.value(),
                          options_.limits.message_bytes_max};
  return SendControl(link, static_cast<uint32_t>(TlsFrame::Kind::kHello), hello.Encode());
}

absl::Status TlsTransport::SendControl(TlsLink& link, uint32_t kind, absl::string_view header) {
  TlsFrame frame;
  frame.kind = static_cast<TlsFrame::Kind>(kind);
  frame.header_bytes = static_cast<uint32_t>(header.size());
  const auto head = frame.Encode();
  std::string bytes(reinterpret_cast<const char*>(head.data()), head.size());
  bytes.append(header.data(), header.size());
  size_t written = 0;
  // Always taken whole: nothing but such frames was written before.
  SLUICE_RETURN_IF_ERROR(
      link.connection
          ->Write({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, written)
          .status());
  return link.connection->Flush().status();
}

absl::Status TlsTransport::Refuse(TlsLink& link, const absl::Status& reason) {
  const absl::string_view text = reason.message().substr(0, kTlsHelloBytesMax);
  // It is dropped whether or not it hears why.
  static_cast<void>(SendControl(link, static_cast<uint32_t>(TlsFrame::Kind::kRefused), text));
  return reason;
}

absl::Status TlsTransport::HandleFrame(TlsLink& link, const TlsMessage& message, Events& events) {
  const TlsFrame::Kind kind = message.frame.kind;
  if (link.open) {
    if (kind == TlsFrame::Kind::kData) {
      events.OnMessage(link.endpoint->id, message.header(), message.payload());
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("the peer introduced itself twice");
  }
  switch (kind) {
    case TlsFrame::Kind::kHello: {
      SLUICE_ASSIGN_OR_RETURN(const TlsHello hello, TlsHello::Decode(message.header()));
      return link.dialed() ? HandleAnswer(link, hello) : HandleHello(link, hello);
    }
    case TlsFrame::Kind::kYield:
      if (!link.dialed()) break;
      HandleYield(link);
      return absl::OkStatus();
    case TlsFrame::Kind::kRefused:
      if (!link.dialed()) break;
      return absl::PermissionDeniedError(
          absl::StrCat("the peer refused: ", absl::CHexEscape(message.header())));
    case TlsFrame::Kind::kData:
      break;
  }
  return absl::InvalidArgumentError("the peer did not introduce itself");
}

absl::Status TlsTransport::HandleAnswer(TlsLink& link, const TlsHello& hello) {
  TlsEndpoint& endpoint = *link.endpoint;
  if (hello.sender != endpoint.peer || hello.receiver != id_) {
    return absl::InvalidArgumentError("the peer answers for another transport");
  }
  Attach(link, endpoint, hello);
  return absl::OkStatus();
}

absl::Status TlsTransport::HandleHello(TlsLink& link, const TlsHello& hello) {
  if (hello.receiver != id_ || hello.sender == id_) {
    return Refuse(link, absl::InvalidArgumentError(
                            absl::StrCat("transport ", hello.receiver.ToHex(),
                                         " is not here any more; here is ", id_.ToHex())));
  }
  if (hello.message_bytes_max != options_.limits.message_bytes_max) {
    return Refuse(link, absl::InvalidArgumentError(absl::StrCat(
                            "messages have at most ", hello.message_bytes_max, " bytes there, ",
                            options_.limits.message_bytes_max, " here")));
  }
  const std::string identity = link.peer.ToUri();
  const auto found = open_.find(hello.sender);
  TlsEndpoint* endpoint = found == open_.end() ? nullptr : found->second;
  if (endpoint != nullptr && endpoint->identity != identity) {
    return Refuse(link, absl::PermissionDeniedError(absl::StrCat(
                            identity, " claims to be a transport of ", endpoint->identity)));
  }
  if (endpoint != nullptr && endpoint->peer_epoch != 0) {
    if (hello.epoch <= endpoint->peer_epoch) {
      // The other of two dials, overtaken.
      Remove(link.serial);
      return absl::OkStatus();
    }
    End(*endpoint, absl::UnavailableError("the peer has connected anew"));
    endpoint = nullptr;
  }
  if (endpoint != nullptr && endpoint->link != 0) {
    if (id_ < hello.sender) {
      const absl::Status told =
          SendControl(link, static_cast<uint32_t>(TlsFrame::Kind::kYield), "");
      Remove(link.serial);
      return told;
    }
    Remove(std::exchange(endpoint->link, 0));
  }
  if (endpoint == nullptr) {
    const absl::StatusOr<TlsEndpoint*> added = AddEndpoint(hello.sender, identity);
    if (!added.ok()) return Refuse(link, added.status());
    endpoint = *added;
  }
  const TlsHello answer = {id_, hello.sender, endpoint->id.value(),
                           options_.limits.message_bytes_max};
  SLUICE_RETURN_IF_ERROR(
      SendControl(link, static_cast<uint32_t>(TlsFrame::Kind::kHello), answer.Encode()));
  Attach(link, *endpoint, hello);
  return absl::OkStatus();
}

void TlsTransport::Attach(TlsLink& link, TlsEndpoint& endpoint, const TlsHello& hello) {
  link.endpoint = &endpoint;
  link.open = true;
  endpoint.link = link.serial;
  endpoint.peer_epoch = hello.epoch;
  endpoint.open = true;
  Pump(endpoint);
}

void TlsTransport::HandleYield(TlsLink& link) {
  link.endpoint->link = 0;
  link.endpoint->ticks = 0;
  link.endpoint = nullptr;
  Remove(link.serial);
}

void TlsTransport::Count(Refusal reason, const TlsLink& link, const absl::Status& status) {
  const uint64_t before =
      refused_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  // Ever rarer, so that a flood does not fill the log.
  if (!std::has_single_bit(before + 1)) return;
  SLUICE_LOG(kWarning) << "tls: refused" << Field("reason", RefusalName(reason))
                       << Field("from", PeerOf(link.connection->fd()))
                       << Field("why", status.message()) << Field("so_far", before + 1);
}

void TlsTransport::Drop(TlsLink& link, const absl::Status& reason) {
  // A peer that was let in may leave, and a dial may fail; anything else is refused.
  const bool left = absl::IsUnavailable(reason) && link.encrypted;
  const bool own_dial = link.dialed() && !link.open;
  if (!left && !own_dial) Count(RefusalOf(reason), link, reason);
  if (link.endpoint != nullptr && link.endpoint->link == link.serial) {
    End(*link.endpoint, reason);
  } else {
    Remove(link.serial);
  }
}

void TlsTransport::Remove(uint64_t serial) { links_.erase(serial); }

void TlsTransport::Tick() {
  uint64_t count = 0;
  static_cast<void>(read(timer_.get(), &count, sizeof(count)));
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("no connection within ", absl::FormatDuration(options_.handshake_timeout)));
  std::vector<uint64_t> late_links;
  for (const auto& [serial, link] : links_) {
    if (!link->open && ++link->ticks >= kTicksMax) late_links.push_back(serial);
  }
  for (const uint64_t serial : late_links) Drop(*links_.at(serial), late);
  for (const auto& [id, endpoint] : endpoints_) {
    const bool waits = !endpoint->ended && !endpoint->open && endpoint->link == 0;
    if (waits && ++endpoint->ticks >= kTicksMax) End(*endpoint, late);
  }
  ticking_ = false;
  ArmTicks();
}

// Ticks while something waits for a peer, and only then.
void TlsTransport::ArmTicks() {
  if (ticking_) return;
  bool wanted = false;
  for (const auto& [serial, link] : links_) wanted = wanted || !link->open;
  for (const auto& [id, endpoint] : endpoints_) {
    wanted = wanted || (!endpoint->ended && !endpoint->open);
  }
  if (!wanted) return;
  ticking_ = true;
  itimerspec when{};
  when.it_value = absl::ToTimespec(options_.handshake_timeout / (kTicksMax - 1));
  SLUICE_CHECK(timerfd_settime(timer_.get(), 0, &when, nullptr) == 0) << strerror(errno);
}

}  // namespace sluice::transport
