#include "services/cli/doctor/checks.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace sluice::cli {
namespace {

// Below this a token of the demo model (84 MB of weights) takes more than 17 ms.
constexpr double kSlowMemoryGbPerS = 5;
// Pinned pages of a small RDMA pool; below it registration fails at once.
constexpr uint64_t kMemlockSmallBytes = uint64_t{1} << 30;

std::string Mib(uint64_t bytes) { return absl::StrFormat("%d MiB", bytes >> 20); }

Finding Make(absl::string_view name, Verdict verdict, std::string value, absl::string_view advice) {
  return {std::string(name), verdict, std::move(value),
          verdict == Verdict::kOk ? "" : std::string(advice)};
}

}  // namespace

Finding CheckIsa(kernels::IsaPath best) {
  const std::string value(kernels::IsaPathName(best));
  return Make("isa", best == kernels::IsaPath::kReference ? Verdict::kWarn : Verdict::kOk, value,
              "this processor has neither AVX-512 (VNNI, BF16) nor AVX2: models run on the slow "
              "reference kernels; use a newer host, or a hypervisor that passes AVX2 through");
}

Finding CheckCpus(int usable, int online, uint32_t threads) {
  const std::string value =
      absl::StrFormat("%d of %d cores usable, %s", usable, online,
                      threads == 0 ? "a thread on each" : absl::StrCat(threads, " threads"));
  if (threads > static_cast<uint32_t>(usable)) {
    return Make("cpus", Verdict::kWarn, value,
                absl::StrCat("more threads than cores wait for each other: use --threads ", usable,
                             " or 0"));
  }
  return Make("cpus", usable < 2 ? Verdict::kWarn : Verdict::kOk, value,
              "prefill and decode share one core: give the process two or more (affinity, cgroup "
              "quota)");
}

Finding CheckBandwidth(const absl::StatusOr<double>& gb_per_s, int threads) {
  if (!gb_per_s.ok()) {
    return Make("memory_bandwidth", Verdict::kWarn, std::string(gb_per_s.status().message()),
                "free memory and run again");
  }
  return Make("memory_bandwidth", *gb_per_s < kSlowMemoryGbPerS ? Verdict::kWarn : Verdict::kOk,
              absl::StrFormat("%.1f GB/s read by %d threads", *gb_per_s, threads),
              "decoding is bound by memory: other programs use it just now, or the host is slow; "
              "measure again while it is idle");
}

Finding CheckMemory(const absl::StatusOr<uint64_t>& available_bytes, uint64_t needed_bytes) {
  if (!available_bytes.ok()) {
    return Make("memory", Verdict::kWarn, std::string(available_bytes.status().message()),
                "mount /proc so that free memory can be read");
  }
  return Make("memory", *available_bytes < needed_bytes ? Verdict::kFail : Verdict::kOk,
              absl::StrCat(Mib(*available_bytes), " available, ", Mib(needed_bytes), " needed"),
              "end other programs, use a smaller model, or lower --kv-pool-mib");
}

std::vector<Finding> CheckTransports(absl::Span<const TransportProbe> probes) {
  const bool any = std::any_of(probes.begin(), probes.end(),
                               [](const TransportProbe& p) { return p.gb_per_s.ok(); });
  std::vector<Finding> findings;
  for (const TransportProbe& probe : probes) {
    const std::string name = "transport:" + probe.name;
    if (probe.gb_per_s.ok()) {
      findings.push_back(
          Make(name, Verdict::kOk, absl::StrFormat("%.1f GB/s", *probe.gb_per_s), ""));
      continue;
    }
    const bool rdma = probe.name == "ucx-rdma";
    // Hosts without such a card are the usual case.
    findings.push_back(
        Make(name,
             any && rdma ? Verdict::kOk
             : any       ? Verdict::kWarn
                         : Verdict::kFail,
             absl::StrCat(any && rdma ? "not available: " : "", probe.gb_per_s.status().message()),
             any ? "workers can use the other transports; see common/transport/README.md"
                 : "no transport works: install UCX (libucx0), check /dev/shm and the loopback "
                   "interface"));
  }
  if (probes.empty()) {
    findings.push_back(Make("transport", Verdict::kFail, "this program was built without UCX",
                            "install libucx-dev and build again"));
  }
  return findings;
}

Finding CheckSharedMemory(const absl::StatusOr<Space>& space, uint64_t needed_bytes) {
  const std::string advice = absl::StrCat(
      "page pools live there: enlarge it (mount -o remount,size=", needed_bytes >> 20,
      "m /dev/shm; docker run --shm-size=", needed_bytes >> 20, "m), or lower --kv-pool-mib");
  if (!space.ok()) {
    return Make("shm", Verdict::kFail, std::string(space.status().message()), advice);
  }
  return Make("shm", space->free_bytes < needed_bytes ? Verdict::kFail : Verdict::kOk,
              absl::StrCat(Mib(space->free_bytes), " of ", Mib(space->total_bytes),
                           " free in /dev/shm, ", Mib(needed_bytes), " needed"),
              advice);
}

Finding CheckMemlock(uint64_t limit_bytes, bool unlimited, bool has_rdma) {
  const std::string value = unlimited ? "unlimited" : Mib(limit_bytes);
  if (!has_rdma) {
    return Make("memlock", Verdict::kOk, absl::StrCat(value, "; only RDMA needs it, none here"),
                "");
  }
  const bool small = !unlimited && limit_bytes < kMemlockSmallBytes;
  return Make("memlock", small ? Verdict::kWarn : Verdict::kOk, value,
              "RDMA pins the whole page pool: ulimit -l unlimited, or LimitMEMLOCK=infinity in the "
              "unit; shared memory and TCP work without");
}

Finding CheckPort(uint16_t port, absl::string_view use, const absl::Status& listen,
                  absl::string_view holder) {
  const std::string name = absl::StrCat("port:", port);
  if (listen.ok()) return Make(name, Verdict::kOk, absl::StrCat("free (", use, ")"), "");
  // A cluster that runs already is no fault of the machine.
  const bool ours = absl::StrContains(holder, "(sluice");
  return Make(name, ours ? Verdict::kWarn : Verdict::kFail,
              holder.empty() ? std::string(listen.message())
                             : absl::StrCat("used by ", holder, " (wanted: ", use, ")"),
              ours ? "a cluster runs here: stop it with sluice down, or give the next one other "
                     "ports"
                   : "stop that process, or give the router another port (0 takes any)");
}

Finding CheckHugePages(const absl::StatusOr<std::string>& mode) {
  if (!mode.ok()) {
    return Make("huge_pages", Verdict::kWarn, std::string(mode.status().message()),
                "this kernel has no transparent huge pages; weights are read about 20 % slower");
  }
  const bool never = absl::StrContains(*mode, "[never]");
  return Make("huge_pages", never ? Verdict::kWarn : Verdict::kOk,
              std::string(absl::StripAsciiWhitespace(*mode)),
              "weights are read about 20 % slower without: echo madvise > "
              "/sys/kernel/mm/transparent_hugepage/enabled");
}

Finding CheckModel(absl::string_view path, const absl::StatusOr<std::string>& summary) {
  if (summary.ok()) return Make("model", Verdict::kOk, absl::StrCat(path, ": ", *summary), "");
  return Make("model", Verdict::kFail, std::string(summary.status().message()),
              absl::StrCat("--model ", path,
                           ": give a GGUF file or a folder with config.json and "
                           "safetensors of a model, or fetch the demo model with "
                           "deploy/local/fetch-model"));
}

Finding CheckDisk(absl::string_view folder, const absl::StatusOr<Space>& space,
                  uint64_t needed_bytes) {
  if (!space.ok()) {
    return Make("disk", Verdict::kWarn, std::string(space.status().message()),
                absl::StrCat("models are kept in ", folder,
                             ": create it, or name another with "
                             "--cache-dir"));
  }
  return Make("disk", space->free_bytes < needed_bytes ? Verdict::kFail : Verdict::kOk,
              absl::StrCat(Mib(space->free_bytes), " free for ", folder, ", ", Mib(needed_bytes),
                           " needed for the demo model"),
              "free some space, or set XDG_CACHE_HOME to another disk");
}

}  // namespace sluice::cli
