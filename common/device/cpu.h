// What the machine offers to this process: cores and memory bandwidth.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "device/thread_pool.h"

namespace sluice::device {

// Cores this process may use: its affinity mask, limited by the CPU quota of its control group. At
// least 1.
int UsableCpus();

// Cores that a `cpu.max` line of a control group allows ("max 100000", "150000 100000"), rounded
// up; 0 = no limit or not understood.
int CpusOfQuota(absl::string_view cpu_max);

// Sequential read rate in GB/s (1e9) of all workers of `pool` together over a fresh buffer of
// `bytes` (default: larger than any cache); the best of `rounds`. Takes about bytes * (rounds + 1)
// / rate: a tenth of a second. RESOURCE_EXHAUSTED when the buffer cannot be had.
absl::StatusOr<double> MeasureReadBandwidth(ThreadPool& pool, const Clock& clock,
                                            size_t bytes = size_t{256} << 20, int rounds = 3);

}  // namespace sluice::device
