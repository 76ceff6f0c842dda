#include "services/worker/worker_main.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "config/config.h"
#include "config/yaml.h"
#include "device/cpu.h"
#include "rpc/signals.h"
#include "services/process/flags.h"
#include "services/worker/worker_process.h"
#include "transport/factory.h"

namespace sluice::services {
namespace {

absl::StatusOr<std::unique_ptr<transport::Transport>> MakeConfiguredTransport(const v1::TransportConfig& config) {
  transport::TransportOptions options;
  options.backends.assign(config.backends().begin(), config.backends().end());
  options.net_devices = config.net_devices();
  options.trusted_network = config.trusted_network();
  return transport::CreateTransport(options);
}

}  // namespace

int WorkerMain(int argc, char** argv, const std::string& service) {
  rpc::BlockTerminationSignals();
  Flags flags;
  const std::vector<FlagAlias> aliases = {
      {"--model", "model.path", "model folder, GGUF file or toy"},
      {"--cache-manager", "cache_manager", "host:port of the cache-manager"},
      {"--kernels", "engine.kernels", "auto, reference, avx2 or avx512"},
      {"--kv", "engine.kv_format", "f32, bf16 or gqa_fp8"},
      {"--threads", "engine.threads", "compute threads"},
  };
  if (const auto code = ParseFlags(argc, argv, absl::StrCat("Sluice ", service, " worker"), aliases, &flags)) return *code;
  auto config = config::LoadWorkerConfig(flags.sources, service);
  if (!config.ok()) return ReportStartFailure(config.status());
  if (!config->engine().has_threads()) config->mutable_engine()->set_threads(static_cast<uint32_t>(device::UsableCpus()));
  if (const auto code = AnswerConfigFlags(flags, config::ToYaml(*config))) return *code;
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(config->service().log_level(), &level);
  InitLogging(config->service().name(), level, config->service().log_json());
  auto worker = WorkerProcess::Start(*config, service, MakeConfiguredTransport, true);
  if (!worker.ok()) return ReportStartFailure(worker.status());
  return (*worker)->Run();
}

}  // namespace sluice::services
