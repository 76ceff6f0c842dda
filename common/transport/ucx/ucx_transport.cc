#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_waker.h"
#include "transport/ucx/ucx_wire.h"
#include "transport/ucx/ucx_worker.h"

namespace sluice::transport {
namespace {

// Progress calls of one Poll, so that a flood of messages leaves the loop its turn.
constexpr int kProgressMax = 64;
// Polls in vain before the loop may sleep although something is unfinished that no descriptor
// announces: the steps in which UCX ends a connection, and room in the queue of a peer in shared
// memory.
constexpr size_t kLooksAwake = 64;
// Sleeps between later looks grow from the first to the second or, while messages wait, to the
// third.
constexpr absl::Duration kLookFirst = absl::Microseconds(50);
constexpr absl::Duration kLookRarely = absl::Seconds(1);
constexpr absl::Duration kLookForRoom = absl::Milliseconds(2);
// Progress calls that the destructor gives to the endings.
constexpr int kLastProgress = 1000;

Id128 RandomId() {
  SecureRandom random;
  return random.NextId128();
}

const char* NameOf(UcxOptions::Kind kind) {
  switch (kind) {
    case UcxOptions::Kind::kShm:
      return "ucx-shm";
    case UcxOptions::Kind::kTcp:
      return "ucx-tcp";
    case UcxOptions::Kind::kRdma:
      return "ucx-rdma";
  }
  return "ucx";
}

UcxSettings SettingsOf(const UcxOptions& options) {
  UcxSettings settings;
  settings.net_devices = options.net_devices;
  settings.keepalive = options.keepalive;
  settings.remote_memory = options.kind != UcxOptions::Kind::kTcp;
  switch (options.kind) {
    case UcxOptions::Kind::kShm:
      settings.transports = "posix";
      settings.shared_memory = true;
      // Gets end within the call, and UCX refuses to sleep at all while a peer's queue is full.
      settings.wake_on_completion = false;
      break;
    case UcxOptions::Kind::kTcp:
      settings.transports = "tcp";
      break;
    case UcxOptions::Kind::kRdma:
      settings.transports = "rc,ud";
      break;
  }
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const UcxOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker,
                          UcxWorker::Create(SettingsOf(options)));
  std::unique_ptr<UcxTransport> transport(new UcxTransport(options, std::move(worker)));
  SLUICE_RETURN_IF_ERROR(transport->Init());
  return transport;
}

UcxTransport::UcxTransport(const UcxOptions& options, std::unique_ptr<UcxWorker> worker)
    : options_(options),
      buffers_(options.limits.send_queue_bytes_max),
      worker_(std::move(worker)),
      id_(RandomId()) {
  capabilities_.name = NameOf(options.kind);
  capabilities_.true_get = options.kind != UcxOptions::Kind::kTcp;
  capabilities_.message_bytes_max = options.limits.message_bytes_max;
}

absl::Status UcxTransport::Init() {
  SLUICE_ASSIGN_OR_RETURN(waker_, UcxWaker::Create(worker_->event_fd()));
  const std::string address = LocalAddress();
  UcxPrefix longest;
  longest.address = address;
  const size_t prefix_bytes = longest.Encode().size();
  if (address.size() > kAddressBytesMax || prefix_bytes > worker_->header_bytes_max()) {
    return absl::UnavailableError(
        absl::StrCat("the UCX address has ", address.size(), " bytes, a message header takes ",
                     worker_->header_bytes_max(), "; name fewer devices"));
  }
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = kMessageId;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = Callbacks::OnArrival;
  param.arg = this;
  return UcxError("ucp_worker_set_am_recv_handler",
                  ucp_worker_set_am_recv_handler(worker_->handle(), &param));
}

UcxTransport::~UcxTransport() {
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->closing)
      BeginClose(*endpoint, absl::CancelledError("the transport is being destroyed"));
  }
  // Bounded: what UCX has not finished by then is abandoned with the worker.
  for (int i = 0; i < kLastProgress && closing_ > 0; ++i) {
    ucp_worker_progress(worker_->handle());
    FinishClosed();
  }
  if (closing_ > 0)
    SLUICE_LOG(kInfo) << "ucx: connections did not end" << Field("connections", closing_);
  reports_.clear();
  arrivals_.clear();
  for (auto& [id, endpoint] : endpoints_) endpoint->regions.clear();
  worker_.reset();  // before the records that its last callbacks use
}

std::string UcxTransport::LocalAddress() const {
  return UcxAddress{capabilities_.name, id_, worker_->address()}.Encode();
}

absl::StatusOr<Region> UcxTransport::AllocateRegion(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a region of 0 bytes");
  if (regions_ >= options_.limits.regions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.limits.regions_max, " regions are in use"));
  }
  Region region;
  if (!capabilities_.true_get) {
    SLUICE_ASSIGN_OR_RETURN(PrivateMemory memory, PrivateMemory::Map(bytes));
    region.memory = memory.bytes();
    private_regions_.push_back(std::move(memory));
    ++regions_;
    return region;
  }
  SLUICE_ASSIGN_OR_RETURN(const UcxWorker::Memory memory, worker_->AllocateMemory(bytes));
  ++regions_;
  region.memory = memory.bytes;
  region.remote_key =
      UcxKey{id_, reinterpret_cast<uint64_t>(memory.bytes.data()), bytes, memory.rkey}.Encode();
  if (region.remote_key.size() > kRemoteKeyBytesMax) {
    return absl::InternalError(
        absl::StrCat("a UCX memory key of ", region.remote_key.size(), " bytes"));
  }
  return region;
}

UcxEndpoint* UcxTransport::FindOpen(EndpointId id) {
  const auto it = endpoints_.find(id);
  return it == endpoints_.end() || it->second->closing || !it->second->reason.ok()
             ? nullptr
             : it->second.get();
}

absl::StatusOr<EndpointId> UcxTransport::Connect(absl::string_view bytes) {
  SLUICE_ASSIGN_OR_RETURN(const UcxAddress address, UcxAddress::Decode(bytes));
  if (address.backend != capabilities_.name) {
    return absl::InvalidArgumentError(
        absl::StrCat("an address of ", address.backend, " given to ", capabilities_.name));
  }
  if (address.transport == id_)
    return absl::InvalidArgumentError("a transport does not connect to itself");
  const auto existing = open_.find(address.transport);
  if (existing != open_.end()) return existing->second->id;
  SLUICE_ASSIGN_OR_RETURN(UcxEndpoint * endpoint,
                          OpenEndpoint(address.transport, address.worker_address));
  SendHello(*endpoint);
  return endpoint->id;
}

absl::StatusOr<UcxEndpoint*> UcxTransport::OpenEndpoint(const Id128& peer,
                                                        const std::string& worker_address) {
  if (endpoints_.size() >= options_.limits.endpoints_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.limits.endpoints_max, " endpoints are in use"));
  }
  auto endpoint = std::make_unique<UcxEndpoint>();
  endpoint->transport = this;
  endpoint->id = EndpointId(++last_endpoint_);
  endpoint->epoch = last_endpoint_;
  endpoint->peer = peer;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = Callbacks::OnError;
  params.err_handler.arg = endpoint.get();
  const ucs_status_t status = ucp_ep_create(worker_->handle(), &params, &endpoint->ep);
  if (status != UCS_OK)
    return UcxError(absl::StrCat("cannot connect over ", capabilities_.name), status);
  UcxEndpoint* raw = endpoint.get();
  endpoints_[raw->id] = std::move(endpoint);
  open_[peer] = raw;
  return raw;
}

bool UcxTransport::Poll(Events& events) {
  const uint64_t activity = activity_;
  for (int i = 0; i < kProgressMax && ucp_worker_progress(worker_->handle()) != 0; ++i) {
  }
  idle_looks_ = activity_ == activity ? idle_looks_ + 1 : 0;
  HandleArrivals();
  CloseFailed();
  FinishClosed();
  size_t left = reports_.size();
  const bool any = left > 0;
  // One at a time: a callback may call the transport, which may withdraw what was queued.
  for (; left > 0 && !reports_.empty(); --left) {
    Report report = std::move(reports_.front());
    reports_.pop_front();
    Deliver(events, std::move(report));
  }
  return any;
}

void UcxTransport::Deliver(Events& events, Report report) {
  switch (report.kind) {
    case Report::Kind::kMessage: {
      const UcxArrival& message = *report.message;
      const auto* header = reinterpret_cast<const char*>(message.data());
      events.OnMessage(report.endpoint, absl::string_view(header, report.header_bytes),
                       absl::MakeConstSpan(message.data() + report.header_bytes,
                                           message.bytes - report.header_bytes));
      break;
    }
    case Report::Kind::kFetchDone:
      --fetches_;
      events.OnFetchDone(report.fetch, report.status);
      break;
    case Report::Kind::kPeerDown:
      events.OnPeerDown(report.endpoint, report.status);
      break;
  }
}

int UcxTransport::EventFd() const { return waker_->fd(); }

bool UcxTransport::PrepareSleep() {
  if (!reports_.empty() || !arrivals_.empty() || !failed_.empty()) return false;
  waker_->Clear();
  const bool busy = ucp_worker_arm(worker_->handle()) == UCS_ERR_BUSY;
  const bool wait_for_room = options_.kind == UcxOptions::Kind::kShm && queued_messages_ > 0;
  if (!busy && !wait_for_room && closing_ == 0) return true;
  if (idle_looks_ < kLooksAwake) return false;
  const int doublings = static_cast<int>(std::min<size_t>(idle_looks_ - kLooksAwake, 20));
  const absl::Duration most = wait_for_room ? kLookForRoom : kLookRarely;
  waker_->WakeAfter(std::min(kLookFirst * (1 << doublings), most));
  return true;
}

}  // namespace sluice::transport
