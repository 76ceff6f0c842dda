#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_loop.h"
#include "config/config.h"
#include "config/yaml.h"
#include "rpc/library.h"
#include "services/cache_manager/cache_manager_service.h"
#include "services/process/service_main.h"
#include "services/process/service_process.h"

namespace sluice::cache_manager {
namespace {

absl::Status Run(const v1::CacheManagerConfig& config) {
  services::ServiceProcess process({"cache-manager", config.service(), config::ToYaml(config)});
  SLUICE_RETURN_IF_ERROR(process.Prepare());
  SLUICE_RETURN_IF_ERROR(process.HandleSignals());
  SLUICE_ASSIGN_OR_RETURN(const auto loop, ThreadLoop::Start("manager", process.clock(), 65536));
  CacheManagerService service({absl::Milliseconds(config.heartbeat_ms()), config.blocks_max()},
                              *loop, process.metrics());
  process.Watch("manager", *loop);
  absl::Status status = process.Serve({{v1::CacheManager::service_full_name(), &service}});
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
  return services::ServiceMain(argc, argv, {"Sluice cache-manager", {}},
                               config::LoadCacheManagerConfig, Run);
}

}  // namespace
}  // namespace sluice::cache_manager

int main(int argc, char** argv) {
  sluice::rpc::ExitProcess(sluice::cache_manager::Main(argc, argv));
}
