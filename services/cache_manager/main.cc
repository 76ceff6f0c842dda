#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_loop.h"
#include "config/config.h"
#include "config/tenants.h"
#include "config/yaml.h"
#include "rpc/library.h"
#include "services/cache_manager/cache_manager_service.h"
#include "services/cache_manager/rate_lease_service.h"
#include "services/process/service_main.h"
#include "services/process/service_process.h"
#include "services/process/watched_files.h"

namespace sluice::cache_manager {
namespace {

// The tenants file, read again when it changes. Used by one thread.
class TenantsFile {
 public:
  TenantsFile(const std::string& path, const Clock& clock) : path_(path), files_(clock) {}

  // Absent: it is as it was. Errors: what is wrong with it, once for each change.
  absl::StatusOr<std::optional<v1::TenantsFile>> Read() {
    if (!files_.Changed()) return std::nullopt;
    files_.Begin();
    const auto yaml = files_.Read("tenants_file", path_, config::kTenantsFileBytesMax);
    if (files_.SameAsBefore()) return std::nullopt;
    if (!yaml.ok()) return yaml.status();
    return config::LoadTenants(*yaml, path_);
  }

 private:
  const std::string path_;
  services::WatchedFiles files_;
};

void ReadAgain(TenantsFile& file, CacheManagerService& service, telemetry::Counter failures) {
  auto tenants = file.Read();
  if (!tenants.ok()) {
    failures.Add();
    SLUICE_LOG(kError) << "the tenants stay as they were"
                       << Field("why", tenants.status().message());
  } else if (tenants->has_value()) {
    SLUICE_LOG(kInfo) << "tenants" << Field("tenants", (*tenants)->tenants_size());
    service.SetTenants(**std::move(tenants));
  }
}

absl::Status Run(const v1::CacheManagerConfig& config) {
  services::ServiceProcess process({"cache-manager", config.service(), config::ToYaml(config)});
  SLUICE_RETURN_IF_ERROR(process.Prepare());
  SLUICE_RETURN_IF_ERROR(process.HandleSignals());
  SLUICE_ASSIGN_OR_RETURN(const auto loop, ThreadLoop::Start("manager", process.clock(), 65536));
  CacheManagerService service({absl::Milliseconds(config.heartbeat_ms()), config.blocks_max()},
                              *loop, process.metrics());
  const telemetry::Counter failures = process.metrics().counter(telemetry::kTenantsReloadFailures);
  const auto tenants = std::make_shared<TenantsFile>(config.tenants_file(), process.clock());
  if (!config.tenants_file().empty()) {
    SLUICE_ASSIGN_OR_RETURN(auto file, tenants->Read());
    service.SetTenants(*std::move(file));
    process.EverySecond([tenants, &service, failures] { ReadAgain(*tenants, service, failures); });
  }
  process.Watch("manager", *loop);
  RateLeaseService rates(process.clock());
  absl::Status status = process.Serve({{v1::CacheManager::service_full_name(), &service},
                                       {v1::RateLeases::service_full_name(), &rates}});
  if (status.ok()) {
    SLUICE_LOG(kInfo) << "listening" << Field("grpc", process.grpc_address())
                      << Field("metrics", process.metrics_address())
                      << Field("admin", process.admin_address());
    status = process.SetUp({});
  }
  if (status.ok()) {
    process.state().SetReady(true);
    process.WaitForDrain();
  }
  process.Stop();
  loop->Stop();
  return status;
}

int Main(int argc, char** argv) {
  return services::ServiceMain(
      argc, argv,
      {"Sluice cache-manager", {{"--tenants", "tenants_file", "tenants file; default: no shares"}}},
      config::LoadCacheManagerConfig, Run);
}

}  // namespace
}  // namespace sluice::cache_manager

int main(int argc, char** argv) {
  sluice::rpc::ExitProcess(sluice::cache_manager::Main(argc, argv));
}
