#include "services/worker/worker_process.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/yaml.h"
#include "device/cpu.h"
#include "rpc/domain.h"

namespace sluice::services {
namespace {

constexpr size_t kLoopQueueMax = 65536;
// Beyond most caches; takes some 20 ms.
constexpr size_t kMeasuredBytes = size_t{128} << 20;
constexpr absl::Duration kCreditLease = absl::Seconds(2);
// A step of a large model on a slow machine takes seconds; an engine that is silent this long is
// stuck.
constexpr absl::Duration kHeartbeatAgeMax = absl::Seconds(60);

handoff::DigestMode ParseDigests(absl::string_view name) {
  if (name == "off") return handoff::DigestMode::kOff;
  return name == "sampled" ? handoff::DigestMode::kSampled : handoff::DigestMode::kFull;
}

kv::PagePool::Options PoolOptions(const v1::EngineConfig& engine) {
  kv::PagePool::Options options;
  options.zero_freed = engine.kv_zero_on_free() == "always";
  // A page that is attended after it was freed shows.
  options.poison_freed = kFaultPointsBuilt && !options.zero_freed;
  return options;
}

handoff::WorkerOptions ToOptions(const v1::WorkerConfig& config) {
  const v1::EngineConfig& engine = config.engine();
  handoff::WorkerOptions options;
  options.engine.step_tokens_max = engine.step_tokens_max();
  options.engine.batch_max = engine.batch_max();
  options.engine.waiting_max = engine.waiting_max();
  options.engine.itl_target = absl::Milliseconds(engine.itl_target_ms());
  options.engine.layer_group = engine.layer_group();
  options.digests = ParseDigests(config.handoff().digests());
  options.lease = absl::Milliseconds(config.handoff().lease_ms());
  options.drift_margin = config.handoff().drift_permille() / 1e3;
  options.transfers_max = config.handoff().transfers_max();
  options.credits_max = config.credits_max();
  options.credit_lease = kCreditLease;
  return options;
}

v1::WorkerRole ParseRole(absl::string_view role) {
  if (role == "prefill") return v1::PREFILL;
  return role == "decode" ? v1::DECODE : v1::BOTH;
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

// Never 0, which means "unknown" on the wire.
Incarnation NewIncarnation(RandomSource& random) { return Incarnation(random.Next64() | 1); }

ProcessIdentity MakeIdentity(const v1::WorkerConfig& config, absl::string_view service) {
  return {std::string(service), config.service(), config::ToYaml(config), false};
}

}  // namespace

WorkerProcess::WorkerProcess(const v1::WorkerConfig& config, absl::string_view service)
    : config_(config),
      process_(MakeIdentity(config, service)),
      incarnation_(NewIncarnation(random_)) {}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const v1::WorkerConfig& config,
                                                                    absl::string_view service,
                                                                    TransportMaker make_transport,
                                                                    bool handle_signals) {
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess(config, service));
  SLUICE_RETURN_IF_ERROR(worker->process_.Prepare());
  SLUICE_RETURN_IF_ERROR(worker->BuildGate());
  // Before other threads run: UCX reads its settings from the environment.
  SLUICE_ASSIGN_OR_RETURN(worker->transport_, make_transport(config));
  if (handle_signals) SLUICE_RETURN_IF_ERROR(worker->process_.HandleSignals());
  SLUICE_RETURN_IF_ERROR(worker->LoadModel());
  SLUICE_RETURN_IF_ERROR(worker->BuildPages());
  SLUICE_RETURN_IF_ERROR(worker->BuildLoops());
  SLUICE_RETURN_IF_ERROR(worker->Serve());
  return worker;
}

WorkerProcess::~WorkerProcess() {
  // Calls end while the loops still run; then the loops, whose state the worker is; then the
  // worker.
  process_.Stop();
  if (link_loop_) link_loop_->Stop();
  if (move_loop_) move_loop_->Stop();
  if (engine_loop_) engine_loop_->Stop();
  link_.reset();
  worker_.reset();
}

absl::Status WorkerProcess::BuildGate() {
  const std::string& path = config_.claim_key_file();
  if (!path.empty()) {
    SLUICE_ASSIGN_OR_RETURN(claim_keys_, ClaimKeyFile::Load(path, process_.clock()));
    process_.EverySecond([this] { claim_keys_->Refresh(); });
  }
  gate_ =
      std::make_unique<TenantGate>(process_.name(), claim_keys_.get(), process_.tls() != nullptr,
                                   process_.clock(), process_.metrics());
  return absl::OkStatus();
}

absl::Status WorkerProcess::LoadModel() {
  LocalModelOptions options;
  options.path = config_.model().path();
  options.kernels = config_.engine().kernels();
  options.kv_format = config_.engine().kv_format();
  options.kv_centre = config_.engine().kv_centre();
  options.exactness = config_.engine().exactness();
  options.activations = config_.engine().activations();
  options.threads = config_.engine().threads();
  options.page_tokens = config_.engine().page_tokens();
  SLUICE_ASSIGN_OR_RETURN(model_, LoadLocalModel(options));
  const auto rate =
      device::MeasureReadBandwidth(*model_.threads, process_.clock(), kMeasuredBytes, 2);
  if (rate.ok()) gigabytes_per_second_ = *rate;
  return absl::OkStatus();
}

absl::Status WorkerProcess::BuildPages() {
  const kv::PageLayout& layout = model().layout;
  const size_t bytes = size_t{config_.engine().kv_pool_mib()} << 20;
  const size_t pages = bytes / layout.page_bytes();
  if (pages == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine.kv_pool_mib is ", config_.engine().kv_pool_mib(), "; one page of ",
                     model().name, " has ", layout.page_bytes(), " bytes"));
  }
  SLUICE_ASSIGN_OR_RETURN(const transport::Region region,
                          transport_->AllocateRegion(pages * layout.page_bytes()));
  pool_remote_key_ = region.remote_key;
  SLUICE_ASSIGN_OR_RETURN(
      pool_, kv::PagePool::Create(region.memory, layout, PoolOptions(config_.engine())));
  index_ =
      kv::PrefixIndex::Create(*pool_, {.digests = ParseDigests(config_.engine().prefix_digests())});
  return absl::OkStatus();
}

absl::Status WorkerProcess::BuildLoops() {
  SLUICE_ASSIGN_OR_RETURN(engine_loop_,
                          ThreadLoop::Start("engine", process_.clock(), kLoopQueueMax));
  SLUICE_ASSIGN_OR_RETURN(move_loop_, ThreadLoop::Start("move", process_.clock(), kLoopQueueMax));
  SLUICE_ASSIGN_OR_RETURN(link_loop_, ThreadLoop::Start("link", process_.clock(), kLoopQueueMax));
  worker_ =
      handoff::Worker::Create(ToOptions(config_), handoff::Worker::Dependencies{*model_.runner,
                                                                                *pool_,
                                                                                *index_,
                                                                                *transport_,
                                                                                pool_remote_key_,
                                                                                *engine_loop_,
                                                                                *move_loop_,
                                                                                random_,
                                                                                incarnation_,
                                                                                process_.faults(),
                                                                                {}});
  WireTransport();
  metrics_ = std::make_unique<WorkerMetrics>(process_.metrics());
  metrics_->Collect({process_.clock(), *worker_, *pool_, *index_, *model_.runner, *transport_});
  return absl::OkStatus();
}

void WorkerProcess::WireTransport() {
  move_loop_->Post([this] {
    move_loop_->SetBeforeSleep([this] {
      if (transport_->PrepareSleep()) return false;
      worker_->PollTransport();
      return true;
    });
    if (transport_->EventFd() < 0) return;
    const absl::Status status =
        move_loop_->WatchReadable(transport_->EventFd(), [this] { worker_->PollTransport(); });
    if (!status.ok()) SLUICE_LOG(kError) << "cannot watch the transport: " << status.ToString();
  });
}

absl::Status WorkerProcess::Serve() {
  const v1::WorkerRole role = ParseRole(config_.role());
  const WorkerFrame frame = {*worker_,
                             process_.state(),
                             *metrics_,
                             process_.clock(),
                             process_.faults(),
                             process_.source(),
                             static_cast<uint32_t>(model().context_tokens),
                             model().vocabulary,
                             kCreditLease,
                             *gate_};
  std::vector<rpc::ServedService> services;
  if (role != v1::DECODE) {
    prefill_service_ = std::make_unique<PrefillService>(frame);
    services.push_back({v1::Prefill::service_full_name(), prefill_service_.get()});
  }
  if (role != v1::PREFILL) {
    decode_service_ = std::make_unique<DecodeService>(frame);
    services.push_back({v1::Decode::service_full_name(), decode_service_.get()});
  }
  process_.SetLiveCheck([this] { return Live(); });
  process_.Watch("move", *move_loop_);
  process_.Watch("link", *link_loop_);
  process_.SetStatusSource([this](v1::GetStatusReply* reply) {
    const absl::Duration age = process_.clock().Now() - worker_->last_progress();
    reply->set_heartbeat_age_ms(
        static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(age))));
    const handoff::WorkerLoad load = worker_->load();
    (*reply->mutable_in_flight())["running"] = load.engine.running;
    (*reply->mutable_in_flight())["waiting"] = load.engine.waiting;
  });
  SLUICE_RETURN_IF_ERROR(process_.Serve(services));
  SLUICE_RETURN_IF_ERROR(ConnectManager());
  LogStart();
  SLUICE_RETURN_IF_ERROR(
      process_.SetUp({{"role", config_.role()}, {"model", config_.model().served_name()}}));
  process_.state().SetReady(true);
  return absl::OkStatus();
}

absl::Status WorkerProcess::ConnectManager() {
  if (config_.cache_manager().empty()) return absl::OkStatus();
  ManagerLinkOptions options;
  options.address = config_.cache_manager();
  options.channel = process_.ChannelsTo({ServiceRole::kCacheManager});
  options.info = Info();
  options.heartbeat = [this] {
    v1::Heartbeat heartbeat;
    *heartbeat.mutable_load() = rpc::ToProto(worker_->load());
    heartbeat.set_ready(process_.state().ready());
    heartbeat.set_draining(process_.state().draining());
    return heartbeat;
  };
  options.busy = [this] { return process_.state().in_flight() > 0; };
  const telemetry::Gauge degraded =
      process_.metrics().gauge(telemetry::kDegraded, {"cache_manager"});
  degraded.Set(1);
  options.on_connection = [degraded](bool connected) { degraded.Set(connected ? 0 : 1); };
  link_ = ManagerLink::Start(std::move(options), *pool_, *index_, *link_loop_);
  process_.OnReadyChanged([this] { link_->SendHeartbeat(); });
  return absl::OkStatus();
}

v1::WorkerInfo WorkerProcess::Info() const {
  const engine::ModelInfo& info = model();
  v1::WorkerInfo message;
  message.set_worker_id(process_.name());
  message.set_incarnation(incarnation_.value());
  message.set_role(ParseRole(config_.role()));
  message.set_grpc_address(process_.advertised_address());
  message.set_model(config_.model().served_name());
  message.set_model_digest(info.model_digest.ToBytes());
  message.set_numerics_id(info.numerics_id.ToBytes());
  *message.mutable_layout() = rpc::ToProto(info.layout);
  message.set_layout_hash(info.layout.hash().ToBytes());
  message.set_context_tokens(static_cast<uint32_t>(info.context_tokens));
  message.set_vocabulary(static_cast<uint32_t>(info.vocabulary));
  message.set_host(HostName());
  message.set_metrics_address(process_.metrics_address());
  message.set_model_path(config_.model().path());
  const uint64_t request_pages = std::min<uint64_t>(
      info.layout.PagesFor(static_cast<uint32_t>(info.context_tokens)), pool_->size());
  message.set_kv_bytes(pool_->size() * uint64_t{info.layout.page_bytes()});
  message.set_kv_request_bytes(request_pages * info.layout.page_bytes());
  return message;
}

absl::Status WorkerProcess::Live() const {
  const absl::Duration age = process_.clock().Now() - worker_->last_progress();
  if (age <= kHeartbeatAgeMax) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the engine has not moved for ", absl::FormatDuration(age)));
}

void WorkerProcess::LogStart() const {
  const engine::ModelInfo& info = model();
  const double tokens = static_cast<double>(pool_->size()) * info.layout.page_tokens();
  SLUICE_LOG(kInfo) << "model" << Field("name", config_.model().served_name())
                    << Field("path", config_.model().path())
                    << Field("context", info.context_tokens) << Field("vocabulary", info.vocabulary)
                    << Field("numerics", info.numerics_id)
                    << Field("weight_bytes", model_.weight_bytes);
  SLUICE_LOG(kInfo) << "compute" << Field("kernels", kernels::IsaPathName(model_.path))
                    << Field("threads", model_.threads->workers())
                    << Field("gigabytes_per_second",
                             absl::StrFormat("%.1f", gigabytes_per_second_));
  SLUICE_LOG(kInfo) << "kv pages" << Field("pages", pool_->size()) << Field("tokens", tokens)
                    << Field("layout", info.layout.Describe());
  SLUICE_LOG(kInfo) << "transport" << Field("backend", transport_->capabilities().name)
                    << Field("true_get", transport_->capabilities().true_get);
  SLUICE_LOG(kInfo) << "listening" << Field("role", config_.role())
                    << Field("grpc", process_.grpc_address())
                    << Field("metrics", process_.metrics_address())
                    << Field("admin", process_.admin_address());
}

void WorkerProcess::RunUntilDrained() {
  process_.WaitForDrain();
  process_.Stop();
  SLUICE_LOG(kInfo) << "stopped";
}

}  // namespace sluice::services
