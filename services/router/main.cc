// sluice-router: configuration to a running router.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_loop.h"
#include "config/yaml.h"
#include "http/openai_server.h"
#include "rpc/library.h"
#include "rpc/listen.h"
#include "services/process/claim_key_file.h"
#include "services/process/service_main.h"
#include "services/process/service_process.h"
#include "services/router/cluster_link.h"
#include "services/router/grpc_worker_client.h"
#include "services/router/inference_service.h"
#include "services/router/router_core.h"
#include "services/router/telemetry_metrics.h"
#include "services/router/tenants.h"
#include "services/router/usage_log.h"

namespace sluice::router {
namespace {

// Tasks that may wait for the loop: every token of every stream passes through it.
constexpr size_t kLoopQueueMax = size_t{1} << 20;
constexpr size_t kTextQueueMax = 4096;
// A stream ends as a slow reader's before its connection is given up.
constexpr absl::Duration kWriteTimeoutMargin = absl::Seconds(10);

RouterOptions OptionsOf(const v1::RouterConfig& config) {
  RouterOptions options;
  options.placement.split = config.split() == "always"  ? cluster::SplitMode::kAlways
                            : config.split() == "never" ? cluster::SplitMode::kNever
                                                        : cluster::SplitMode::kAuto;
  options.placement.local_tokens_max = config.local_tokens_max();
  options.retry.attempts_max = config.attempts_max();
  options.retry.migrations_max = config.migrations_max();
  options.retry.queue_wait_max = absl::Seconds(config.queue_wait_s());
  options.queue.waiting_max = config.queue_max();
  options.default_deadline = absl::Seconds(config.default_deadline_s());
  options.reader_patience = absl::Seconds(config.slow_reader_s());
  options.lookup_timeout = absl::Milliseconds(config.lookup_ms());
  return options;
}

http::OpenAiServerOptions HttpOptionsOf(const v1::RouterConfig& config) {
  http::OpenAiServerOptions options;
  options.http.listen = config.http_listen();
  options.http.insecure_anywhere =
      config.service().insecure_listen_anywhere() || config.insecure_clients_anywhere();
  options.http.body_bytes_max = size_t{config.body_kib_max()} << 10;
  options.http.write_timeout = absl::Seconds(config.slow_reader_s()) + kWriteTimeoutMargin;
  options.version = services::Version();
  return options;
}

absl::StatusOr<std::shared_ptr<Tenants>> TenantsOf(const v1::RouterConfig& config,
                                                   const Clock& clock) {
  if (!config.no_auth() && config.tenants_file().empty()) {
    return absl::InvalidArgumentError(
        "nobody could call this router: set tenants_file (sluice tenants makes one), or "
        "no_auth=true on loopback");
  }
  return Tenants::Load({config.tenants_file(), config.cache_secret_file(), config.no_auth()},
                       clock);
}

services::ProcessIdentity IdentityOf(const v1::RouterConfig& config) {
  const v1::TlsConfig& tls = config.client_tls();
  return {"router",
          config.service(),
          config::ToYaml(config),
          true,
          config.insecure_clients_anywhere(),
          {tls.cert_file(), tls.key_file(), tls.ca_file()}};
}

// On the process's own thread.
void RefreshFiles(Tenants& tenants, services::ClaimKeyFile* claim_keys, RouterMetrics& metrics) {
  if (claim_keys != nullptr) claim_keys->Refresh();
  bool read = false;
  const absl::Status status = tenants.Refresh(&read);
  if (!read) return;
  metrics.TenantsRead(status, tenants.Ids());
  if (!status.ok())
    SLUICE_LOG(kError) << "the tenants stay as they were" << Field("why", status.message());
}

absl::Status OpenUsageLog(const v1::RouterConfig& config, services::ServiceProcess& process,
                          RouterOptions* options) {
  if (config.usage_file().empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<UsageLog> usage,
                          UsageLog::Open(config.usage_file(), process.clock(), process.metrics()));
  options->on_usage = [usage](UsageRecord record) { usage->Write(std::move(record)); };
  return absl::OkStatus();
}

absl::Status Run(const v1::RouterConfig& config) {
  services::ServiceProcess process(IdentityOf(config));
  SLUICE_ASSIGN_OR_RETURN(const auto tenants, TenantsOf(config, process.clock()));
  RouterOptions options = OptionsOf(config);
  options.tenants = tenants;
  options.faults = process.faults();
  std::shared_ptr<services::ClaimKeyFile> claim_keys;  // null: none
  if (!config.claim_key_file().empty()) {
    SLUICE_ASSIGN_OR_RETURN(claim_keys,
                            services::ClaimKeyFile::Load(config.claim_key_file(), process.clock()));
  }
  SLUICE_RETURN_IF_ERROR(process.Prepare());
  const http::OpenAiServerOptions http_options = HttpOptionsOf(config);
  SLUICE_RETURN_IF_ERROR(rpc::CheckListen(config.http_listen(), http_options.http.insecure_anywhere,
                                          services::kAllowClients)
                             .status());
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<ThreadLoop> loop,
                          ThreadLoop::Start("router", process.clock(), kLoopQueueMax));
  SLUICE_ASSIGN_OR_RETURN(const auto text_loop,
                          ThreadLoop::Start("text", process.clock(), kTextQueueMax));
  SecureRandom random;
  const std::shared_ptr<RouterMetrics> metrics =
      MakeTelemetryMetrics(process.metrics(), tenants->Ids());
  SLUICE_RETURN_IF_ERROR(OpenUsageLog(config, process, &options));
  process.EverySecond(
      [tenants, claim_keys, metrics] { RefreshFiles(*tenants, claim_keys.get(), *metrics); });
  RouterCore core(
      std::move(options), *loop, *text_loop, random, *metrics, process.state(),
      [&](cluster::Directory& d) {
        return MakeGrpcWorkerClient(
            loop, d,
            [&d](const WorkerId& worker, Incarnation incarnation, const cluster::LoadReport& load) {
              d.ReportLoad(worker, incarnation, load);
            },
            process.ChannelsTo({ServiceRole::kPrefill, ServiceRole::kDecode}), claim_keys.get());
      });
  if (!config.tokenizer().empty()) {
    SLUICE_ASSIGN_OR_RETURN(auto model, services::LoadTextModel(config.tokenizer()));
    core.AddModel(std::move(model));
  }
  InferenceService inference(core, process.clock());
  process.Watch("router", *loop);
  process.Watch("text", *text_loop);
  SLUICE_RETURN_IF_ERROR(process.Serve({{v1::Inference::service_full_name(), &inference}}));
  SystemClock http_clock;
  SLUICE_ASSIGN_OR_RETURN(const auto http,
                          http::OpenAiServer::Start(http_options, core, http_clock));
  process.OnDrain([&http] { http->BeginShutdown(); });
  SLUICE_RETURN_IF_ERROR(process.HandleSignals());
  if (!config.cache_manager().empty()) {
    auto link = ConnectToManager(
        config.cache_manager(), process.ChannelsTo({ServiceRole::kCacheManager}), loop,
        [&core](const v1::WorkerView& view, bool fresh) { core.OnView(view, fresh); });
    loop->Post([&core, link = std::move(link)]() mutable { core.SetLink(std::move(link)); });
  }
  SLUICE_LOG(kInfo) << "router up" << Field("grpc", process.grpc_address())
                    << Field("http", http->address()) << Field("metrics", process.metrics_address())
                    << Field("split", config.split());
  SLUICE_RETURN_IF_ERROR(process.SetUp({{"http", absl::StrCat("http://", http->address())}}));
  loop->Post([&core] { core.WatchState(); });

  if (!process.WaitForDrain()) core.CancelAll();
  http->Shutdown(absl::Milliseconds(200));
  process.Stop();
  text_loop->Stop();
  loop->Stop();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const services::CommandLine command_line = {
      "Sluice router: faces the clients",
      {{"--http-listen", "http_listen", "host:port of the OpenAI-compatible server"},
       {"--cache-manager", "cache_manager", "host:port of the cache-manager"},
       {"--split", "split", "auto, always or never"}}};
  return services::ServiceMain(argc, argv, command_line, config::LoadRouterConfig, Run);
}

}  // namespace
}  // namespace sluice::router

int main(int argc, char** argv) { sluice::rpc::ExitProcess(sluice::router::Main(argc, argv)); }
