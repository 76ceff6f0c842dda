#include "services/process/service_process.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/certificates/certificate_check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "http/json_writer.h"
#include "rpc/admin_service.h"
#include "rpc/library.h"
#include "rpc/listen.h"
#include "sluice/v1/admin.grpc.pb.h"

namespace sluice::services {
namespace {

// After the drain, for what did not finish.
constexpr absl::Duration kCancelGrace = absl::Milliseconds(200);
constexpr absl::Duration kHousekeepingPeriod = absl::Seconds(5);
// Below one percent of the smallest service.
constexpr size_t kHeapGrowthBytes = 256 << 10;
constexpr absl::Duration kChorePeriod = absl::Seconds(1);

}  // namespace

const char* Version() { return SLUICE_VERSION; }

ServiceProcess::ServiceProcess(ProcessIdentity identity)
    : identity_(std::move(identity)),
      live_([] { return absl::OkStatus(); }),
      heap_(kHeapGrowthBytes) {
  RegisterMetrics();
}

ServiceProcess::~ServiceProcess() { Stop(); }

FaultInjector* ServiceProcess::faults() {
#ifdef SLUICE_FAULTS_ENABLED
  return &faults_;
#else
  return nullptr;
#endif
}

void ServiceProcess::RegisterMetrics() {
  telemetry::RegisterProcessMetrics(metrics_, identity_.service, identity_.config.name(),
                                    Version());
  metrics_.OnCollect([this, ready = metrics_.gauge(telemetry::kReady),
                      in_flight = metrics_.gauge(telemetry::kInFlight)] {
    ready.Set(state_.ready() ? 1 : 0);
    in_flight.Set(state_.in_flight());
  });
  metrics_.OnCollect([this, handshakes = metrics_.counter(telemetry::kRpcRefusals, {"handshake"}),
                      calls = metrics_.counter(telemetry::kRpcRefusals, {"role"})] {
    handshakes.AdvanceTo(static_cast<double>(rpc::RefusedHandshakes()));
    calls.AdvanceTo(tls_ == nullptr ? 0 : static_cast<double>(tls_->refused_calls()));
  });
  metrics_.OnCollect([this, expiry = metrics_.gauge(telemetry::kCertificateExpiry)] {
    if (tls_ == nullptr) return;
    // Files that do not fit together are left alone by those who use them, so the last ones count.
    const auto facts = CheckCertificateFiles(Certificates());
    if (facts.ok()) expiry.Set(absl::ToDoubleSeconds(facts->not_after - absl::UnixEpoch()));
  });
}

CertificateFiles ServiceProcess::Certificates() const {
  const v1::TlsConfig& tls = identity_.config.tls();
  return {tls.cert_file(), tls.key_file(), tls.ca_file()};
}

absl::Status ServiceProcess::Prepare() {
  const CertificateFiles files = Certificates();
  if (!files.certificate.empty()) {
    SLUICE_ASSIGN_OR_RETURN(tls_, rpc::Tls::Load(files));
    if (ServiceRoleName(tls_->identity().role) != identity_.service) {
      return absl::InvalidArgumentError(absl::StrCat(
          "service.tls: ", files.certificate, " is the certificate of ", tls_->identity().ToUri(),
          "; expected sluice://", identity_.service, "/..."));
    }
  }
  if (!identity_.client_tls.empty()) SLUICE_RETURN_IF_ERROR(CheckKeyPair(identity_.client_tls));
  for (const Listener& listener : {GrpcListener(), AdminListener(), MetricsListener()}) {
    SLUICE_RETURN_IF_ERROR(
        rpc::CheckListen(listener.address, listener.anywhere, listener.allow).status());
  }
  return absl::OkStatus();
}

rpc::ChannelOptions ServiceProcess::ChannelsTo(ServiceRoles servers) const {
  rpc::ChannelOptions options;
  options.tls = tls_;
  options.servers = servers;
  return options;
}

ServiceProcess::Listener ServiceProcess::GrpcListener() const {
  const v1::ServiceConfig& config = identity_.config;
  if (!identity_.public_facing) {
    return {config.listen(), config.insecure_listen_anywhere() || tls_ != nullptr,
            rpc::kAllowAnywhere};
  }
  return {config.listen(),
          config.insecure_listen_anywhere() || identity_.insecure_clients_anywhere ||
              !identity_.client_tls.empty(),
          kAllowClients};
}

ServiceProcess::Listener ServiceProcess::AdminListener() const {
  const v1::ServiceConfig& config = identity_.config;
  return {config.admin_listen(), config.insecure_listen_anywhere() || tls_ != nullptr,
          rpc::kAllowAnywhere};
}

ServiceProcess::Listener ServiceProcess::MetricsListener() const {
  const v1::ServiceConfig& config = identity_.config;
  return {config.metrics_listen(),
          config.insecure_listen_anywhere() || config.insecure_metrics_anywhere(),
          "service.insecure_metrics_anywhere: true: they hold no prompts"};
}

absl::Status ServiceProcess::Serve(const std::vector<rpc::ServedService>& services) {
  rpc::ServerOptions options;
  options.listen = GrpcListener().address;
  options.insecure_listen_anywhere = GrpcListener().anywhere;
  options.public_facing = identity_.public_facing;
  if (!identity_.public_facing) options.tls = tls_;
  options.client_tls = identity_.client_tls;
  SLUICE_ASSIGN_OR_RETURN(grpc_, rpc::Server::Start(options, services));
  admin_service_ = rpc::MakeAdminService({&state_, faults(), [this](v1::GetStatusReply* reply) {
                                            reply->set_service(identity_.service);
                                            reply->set_name(identity_.config.name());
                                            reply->set_version(Version());
                                            reply->set_config(identity_.config_yaml);
                                            if (status_source_) status_source_(reply);
                                          }});
  rpc::ServerOptions admin_options;
  admin_options.listen = AdminListener().address;
  admin_options.insecure_listen_anywhere = AdminListener().anywhere;
  admin_options.tls = tls_;
  SLUICE_ASSIGN_OR_RETURN(
      admin_,
      rpc::Server::Start(admin_options, {{v1::Admin::service_full_name(), admin_service_.get()}}));
  admin_->SetReady(true);
  state_.OnReadyChanged([this](bool ready) {
    if (ready) {
      SLUICE_LOG(kInfo) << "ready";
    } else {
      SLUICE_LOG(kInfo) << "not ready" << Field("why", state_.why_not_ready());
    }
    grpc_->SetReady(ready);
    if (ready_changed_) ready_changed_();
  });
  http::MetricsSources sources;
  sources.metrics = [this] { return metrics_.Serialize(); };
  sources.live = [this] { return Live(); };
  sources.ready = [this]() -> absl::Status {
    if (state_.ready()) return absl::OkStatus();
    return absl::UnavailableError(state_.why_not_ready());
  };
  SLUICE_ASSIGN_OR_RETURN(metrics_server_, http::MetricsServer::Start({MetricsListener().address,
                                                                       MetricsListener().anywhere},
                                                                      std::move(sources)));
  SLUICE_ASSIGN_OR_RETURN(watch_loop_, ThreadLoop::Start("watch", clock_, 16));
  watch_loop_->Post([this] { KeepHouse(); });
  watch_loop_->Post([this] { DoChores(); });
  return absl::OkStatus();
}

absl::Status ServiceProcess::Live() const {
  SLUICE_RETURN_IF_ERROR(live_());
  return loops_.Check();
}

void ServiceProcess::KeepHouse() {
  const absl::Status live = Live();
  if (!live.ok()) SLUICE_LOG(kError) << "not alive" << Field("why", live.message());
  grpc_->SetLive(live.ok());
  heap_.Run();
  watch_loop_->RunAt(clock_.Now() + kHousekeepingPeriod, [this] { KeepHouse(); });
}

void ServiceProcess::DoChores() {
  for (const auto& chore : chores_) chore();
  if (!chores_.empty()) watch_loop_->RunAt(clock_.Now() + kChorePeriod, [this] { DoChores(); });
}

std::string ServiceProcess::advertised_address() const {
  return identity_.config.advertise().empty() ? grpc_->address() : identity_.config.advertise();
}

absl::Status ServiceProcess::HandleSignals() {
  SLUICE_ASSIGN_OR_RETURN(signals_, rpc::SignalWatcher::Start([this] { state_.BeginDrain(); }));
  return absl::OkStatus();
}

absl::Status ServiceProcess::SetUp(const std::map<std::string, std::string>& more) {
  SLUICE_RETURN_IF_ERROR(WriteReadyFile(more));
  grpc_->SetStarted();
  return absl::OkStatus();
}

absl::Status ServiceProcess::WriteReadyFile(const std::map<std::string, std::string>& more) const {
  const std::string& path = identity_.config.ready_file();
  if (path.empty()) return absl::OkStatus();
  // Renaming replaces whatever is there, and a device or a link is there for a reason.
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type != std::filesystem::file_type::not_found &&
      type != std::filesystem::file_type::regular) {
    return absl::InvalidArgumentError(
        absl::StrCat("service.ready_file: ", path, " is there and is no regular file"));
  }
  std::map<std::string, std::string> fields = more;
  fields["service"] = identity_.service;
  fields["name"] = identity_.config.name();
  fields["grpc"] = grpc_->address();
  fields["metrics"] = absl::StrCat("http://", metrics_server_->address());
  fields["admin"] = admin_->address();
  http::JsonWriter json;
  json.BeginObject().Key("pid").Int(getpid());
  for (const auto& [key, value] : fields) json.Key(key).String(value);
  json.EndObject();
  // Whoever waits for the file must never see half of it.
  const std::string partial = absl::StrCat(path, ".", getpid());
  std::ofstream out(partial, std::ios::trunc);
  out << json.Take() << "\n";
  out.close();
  if (!out || rename(partial.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("service.ready_file: cannot write ", path));
  }
  return absl::OkStatus();
}

bool ServiceProcess::WaitForDrain() {
  state_.WaitForDrain();
  SLUICE_LOG(kInfo) << "draining" << Field("in_flight", state_.in_flight());
  if (identity_.public_facing) grpc_->BeginShutdown();
  if (drain_begun_) drain_begun_();
  const bool idle = state_.WaitIdle(absl::Seconds(identity_.config.drain_s()));
  if (!idle)
    SLUICE_LOG(kWarning) << "drain time is over; ending what still runs"
                         << Field("in_flight", state_.in_flight());
  return idle;
}

void ServiceProcess::Stop() {
  state_.BeginDrain();
  if (watch_loop_) watch_loop_->Stop();
  if (admin_) admin_->Shutdown(absl::ZeroDuration());
  admin_service_.reset();  // releases what waits at a fault point
  if (grpc_) grpc_->Shutdown(kCancelGrace);
  metrics_server_.reset();
}

}  // namespace sluice::services
