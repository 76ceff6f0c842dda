// The instruction set a kernel runs on: chosen once at start, passed to every kernel call.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::kernels {

// One path is one arithmetic: two workers produce the same bits only if they run the same path.
enum class IsaPath : uint8_t {
  kReference = 0,  // plain float32, no rounding inside norms; any x86-64
  kAvx2 = 1,       // AVX2, FMA, F16C
  kAvx512 = 2,     // AVX-512 F, BW, VL, DQ, VNNI, BF16, VBMI
};

// The fastest path that this processor and operating system run.
IsaPath BestIsaPath();

// Whether this processor runs `path`. kReference always is.
bool IsaPathAvailable(IsaPath path);

// Every path that this processor runs, slowest first. Every kernel test runs on all of them.
std::vector<IsaPath> AvailableIsaPaths();

// "reference", "avx2" or "avx512".
absl::string_view IsaPathName(IsaPath path);

// The inverse of IsaPathName; "auto" is BestIsaPath(). nullopt for any other name; does not ask
// whether the path is available.
std::optional<IsaPath> ParseIsaPath(absl::string_view name);

}  // namespace sluice::kernels
