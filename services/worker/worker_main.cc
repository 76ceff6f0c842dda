#include "services/worker/worker_main.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/config.h"
#include "device/cpu.h"
#include "services/process/service_main.h"
#include "services/worker/worker_process.h"
#include "transport/factory.h"

namespace sluice::services {
namespace {

absl::StatusOr<std::unique_ptr<transport::Transport>> MakeConfiguredTransport(
    const v1::WorkerConfig& worker) {
  const v1::TransportConfig& config = worker.transport();
  const v1::TlsConfig& tls = worker.service().tls();
  transport::TransportOptions options;
  options.backends.assign(config.backends().begin(), config.backends().end());
  options.net_devices = config.net_devices();
  options.trusted_network = config.trusted_network();
  options.certificates = {tls.cert_file(), tls.key_file(), tls.ca_file()};
  options.tls_listen = config.listen();
  options.tls_advertise = config.advertise();
  return transport::CreateTransport(options);
}

}  // namespace

int WorkerMain(int argc, char** argv, const std::string& service) {
  const CommandLine command_line = {
      absl::StrCat("Sluice ", service, " worker"),
      {{"--model", "model.path", "model folder, GGUF file or toy"},
       {"--cache-manager", "cache_manager", "host:port of the cache-manager"},
       {"--kernels", "engine.kernels", "auto, reference, avx2 or avx512"},
       {"--kv", "engine.kv_format",
        "auto, f32, bf16, gqa_fp8, gqa_fp8c, gqa_int8c, mla_fp8 or mla_fp8_656"},
       {"--kv-centre", "engine.kv_centre", "file of sluice calibrate, or none"},
       {"--threads", "engine.threads", "compute threads"}}};
  const auto load = [&](const config::Sources& sources) {
    auto config = config::LoadWorkerConfig(sources, service);
    if (config.ok() && !config->engine().has_threads()) {
      config->mutable_engine()->set_threads(static_cast<uint32_t>(device::UsableCpus()));
    }
    return config;
  };
  return ServiceMain(argc, argv, command_line, load,
                     [&](const v1::WorkerConfig& config) -> absl::Status {
                       SLUICE_ASSIGN_OR_RETURN(
                           const auto worker,
                           WorkerProcess::Start(config, service, MakeConfiguredTransport, true));
                       worker->RunUntilDrained();
                       return absl::OkStatus();
                     });
}

}  // namespace sluice::services
