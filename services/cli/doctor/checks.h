// The judgements of `sluice doctor`: each check is a function of what was found on the machine, so
// that every one of them can be made to fail in a test. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/isa.h"

namespace sluice::cli {

enum class Verdict {
  kOk,
  kWarn,  // works, but slower or with less than it could
  kFail,  // Sluice will not run as it should
};

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string value;   // what was found, with numbers
  std::string advice;  // what to do; empty when ok
};

struct Space {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// What one transport did when it was tried: GB/s between two ends on this host, or why it cannot.
struct TransportProbe {
  std::string name;
  absl::StatusOr<double> gb_per_s;
};

Finding CheckIsa(kernels::IsaPath best);
// `usable`: cores of this process after affinity and quota; `threads`: --threads, 0 for all.
Finding CheckCpus(int usable, int online, uint32_t threads);
Finding CheckBandwidth(const absl::StatusOr<double>& gb_per_s, int threads);
// `needed`: weights and page pools of the workers.
Finding CheckMemory(const absl::StatusOr<uint64_t>& available_bytes, uint64_t needed_bytes);
// A finding for each transport. Fails where none of them works.
std::vector<Finding> CheckTransports(absl::Span<const TransportProbe> probes);
// /dev/shm, where the page pools of workers that share memory live.
Finding CheckSharedMemory(const absl::StatusOr<Space>& space, uint64_t needed_bytes);
// RLIMIT_MEMLOCK; `unlimited` where there is no limit. It matters to hosts with RDMA devices only.
Finding CheckMemlock(uint64_t limit_bytes, bool unlimited, bool has_rdma);
// `holder`: "pid 1 (name)" of who listens there, or empty. `listen`: the result of binding it.
Finding CheckPort(uint16_t port, absl::string_view use, const absl::Status& listen,
                  absl::string_view holder);
// The text of /sys/kernel/mm/transparent_hugepage/enabled: "always [madvise] never".
Finding CheckHugePages(const absl::StatusOr<std::string>& mode);
// `summary`: what the model is, or why it cannot be loaded. `path` empty: no model was named.
Finding CheckModel(absl::string_view path, const absl::StatusOr<std::string>& summary);
Finding CheckDisk(absl::string_view folder, const absl::StatusOr<Space>& space,
                  uint64_t needed_bytes);

// "ok", "warn" or "fail".
absl::string_view VerdictName(Verdict verdict);
// How many findings have this verdict.
size_t Count(absl::Span<const Finding> findings, Verdict verdict);
// {"ok", "failed", "warned", "checks": [{"name", "status", "value", "advice"}]}
std::string FindingsJson(absl::Span<const Finding> findings);
std::string FindingsTable(absl::Span<const Finding> findings);

}  // namespace sluice::cli
