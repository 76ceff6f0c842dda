#include "rpc/server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpc/grpc.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/support/time.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "rpc/library.h"
#include "rpc/listen.h"
#include "rpc/parse_errors.h"
#include "rpc/tls.h"

namespace sluice::rpc {
namespace {

constexpr int kMetadataBytesMax = 8 << 10;

void SetLimits(const ServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max()));
  builder->SetMaxSendMessageSize(static_cast<int>(options.message_bytes_max()));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_max());
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  // Two processes on one port would share its connections silently.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  // Peers send keepalives every 10 s; gRPC's default would end their connections for that.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
  builder->AddChannelArgument(
      GRPC_ARG_MAX_CONNECTION_IDLE_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.connection_idle_max)));
  grpc::ResourceQuota quota("sluice");
  quota.Resize(options.memory_bytes_max);
  builder->SetResourceQuota(quota);
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const ServerOptions& options) {
  if (options.tls != nullptr) return options.tls->ForServer();
  return options.client_tls.empty() ? grpc::InsecureServerCredentials()
                                    : CredentialsForClients(options.client_tls);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<ServedService>& services) {
  SLUICE_ASSIGN_OR_RETURN(
      const HostPort where,
      CheckListen(options.listen, options.insecure_listen_anywhere || options.tls != nullptr ||
                                      !options.client_tls.empty()));
  KeepGrpcRunning();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // Reflection describes only what is linked in, and gRPC's health service brings no description.
  grpc::health::v1::HealthCheckResponse::descriptor();
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  int port = 0;
  builder.AddListeningPort(where.ToString(), CredentialsOf(options), &port);
  for (const ServedService& served : services) builder.RegisterService(served.service);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeParseErrorInterceptor());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  std::unique_ptr<Server> server(new Server(services));
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("gRPC cannot listen on ", where.ToString()));
  }
  server->port_ = static_cast<uint16_t>(port);
  server->address_ = HostPort{where.host, server->port_}.ToString();
  server->SetHealth("startup", false);
  server->SetReady(false);
  server->SetLive(true);
  return server;
}

Server::Server(const std::vector<ServedService>& services) {
  for (const ServedService& served : services) service_names_.push_back(served.name);
}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

void Server::SetHealth(absl::string_view service, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(std::string(service), serving);
}

void Server::SetStarted() { SetHealth("startup", true); }

void Server::SetReady(bool ready) {
  SetHealth("", ready);
  SetHealth("readiness", ready);
  for (const std::string& name : service_names_) SetHealth(name, ready);
}

void Server::SetLive(bool live) { SetHealth("liveness", live); }

void Server::BeginShutdown() {
  MutexLock lock(mutex_);
  if (server_ == nullptr || ended_ || shutdown_.joinable()) return;
  // gRPC's own way blocks until the last call has ended, and takes no second word.
  shutdown_ = std::thread([this] {
    server_->Shutdown(gpr_inf_future(GPR_CLOCK_MONOTONIC));
    MutexLock ended(mutex_);
    ended_ = true;
    ended_cv_.NotifyAll();
  });
}

void Server::Shutdown(absl::Duration grace) {
  BeginShutdown();
  std::thread finished;
  {
    MutexLock lock(mutex_);
    if (!shutdown_.joinable()) return;
    if (!ended_) ended_cv_.WaitFor(mutex_, grace);
    // What gRPC does itself when a deadline for the end of all calls has passed.
    if (!ended_) grpc_server_cancel_all_calls(server_->c_server());
    finished = std::move(shutdown_);
  }
  finished.join();
  server_->Wait();
}

}  // namespace sluice::rpc
