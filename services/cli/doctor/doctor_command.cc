// sluice doctor: looks at this machine and says what to do.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/cpu.h"
#include "rpc/listen.h"
#include "services/cli/command.h"
#include "services/cli/doctor/checks.h"
#include "services/cli/doctor/host.h"

namespace sluice::cli {
namespace {

// The demo model and room for its download.
constexpr uint64_t kModelDiskBytes = uint64_t{256} << 20;
// Activations, code and the like of the four services beside weights and pools.
constexpr uint64_t kOverheadBytes = uint64_t{256} << 20;
// One prefill and one decode worker.
constexpr uint64_t kWorkers = 2;

struct DoctorFlags {
  std::string model;
  std::string cache_dir;
  std::string cache_home;
  std::vector<uint16_t> ports = {8080, 8081, 8082, 8083};
  uint32_t threads = 0;
  uint32_t kv_pool_mib = 256;
  bool json = false;
};

absl::string_view UseOf(uint16_t port) {
  switch (port) {
    case 8080:
      return "router, HTTP";
    case 8081:
      return "router, gRPC";
    case 8082:
      return "router, metrics";
    case 8083:
      return "router, admin";
    default:
      return "as asked";
  }
}

std::vector<Finding> Examine(const DoctorFlags& flags) {
  const SystemClock clock;
  // First, while there is one thread.
  const std::vector<TransportProbe> transports = ProbeTransports(clock);
  const std::string cache =
      flags.cache_dir.empty() ? DefaultCacheFolder(flags.cache_home) : flags.cache_dir;
  std::vector<Finding> findings;
  const auto add = [&findings](Finding finding) { findings.push_back(std::move(finding)); };

  add(CheckIsa(kernels::BestIsaPath()));
  const int usable = device::UsableCpus();
  add(CheckCpus(usable, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), flags.threads));
  const int threads = flags.threads > 0 ? static_cast<int>(flags.threads) : usable;
  const auto pool = device::ThreadPool::Create({.workers = threads});
  add(CheckBandwidth(pool.ok() ? device::MeasureReadBandwidth(**pool, clock)
                               : absl::StatusOr<double>(pool.status()),
                     threads));

  uint64_t weight_bytes = 0;
  if (!flags.model.empty()) {
    add(CheckModel(flags.model, DescribeModel(flags.model, &weight_bytes)));
  }
  const uint64_t pools = kWorkers * (uint64_t{flags.kv_pool_mib} << 20);
  add(CheckMemory(AvailableMemory("/proc/meminfo"),
                  pools + kWorkers * weight_bytes + kOverheadBytes));
  for (Finding& finding : CheckTransports(transports)) add(std::move(finding));
  add(CheckSharedMemory(SpaceOf("/dev/shm"), pools));
  rlimit memlock{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  add(CheckMemlock(memlock.rlim_cur, memlock.rlim_cur == RLIM_INFINITY,
                   HasRdmaDevice("/sys/class/infiniband")));
  add(CheckHugePages(FirstLine("/sys/kernel/mm/transparent_hugepage/enabled")));
  for (uint16_t port : flags.ports) {
    add(CheckPort(port, UseOf(port),
                  rpc::CheckListen(absl::StrCat("127.0.0.1:", port), false).status(),
                  rpc::PortHolder(port)));
  }
  add(CheckDisk(cache, SpaceOf(cache), kModelDiskBytes));
  return findings;
}

absl::Status Doctor(const DoctorFlags& flags) {
  const std::vector<Finding> findings = Examine(flags);
  PrintLine(flags.json ? FindingsJson(findings) : FindingsTable(findings));
  const size_t failed = Count(findings, Verdict::kFail);
  if (failed == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(failed, " of ", findings.size(), " checks failed"));
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command =
      app.add_subcommand("doctor", "Check that this machine can run Sluice; exit code 1 if not");
  AddModelOption(*command, &flags->model,
                 "Also check this model folder, .gguf file, toy, or name in deploy/models");
  command->add_option("--ports", flags->ports, "TCP ports that must be free, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Compute threads; 0: every usable core")
      ->capture_default_str();
  command->add_option("--kv-pool-mib", flags->kv_pool_mib, "Page pool of each worker in MiB")
      ->capture_default_str();
  command->add_option("--cache-dir", flags->cache_dir,
                      "Where models are kept; default: sluice below --cache-home");
  command
      ->add_option("--cache-home", flags->cache_home,
                   "Where this user keeps caches; default: .cache of this user")
      ->envname("XDG_CACHE_HOME");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  sluice doctor\n"
      "  sluice doctor --model model.gguf --ports 9080,9081 --json");
  command->callback([flags, run] { *run = [flags] { return Doctor(*flags); }; });
}

}  // namespace sluice::cli
