#include "kernels/isa.h"

#include <cpuid.h>

namespace sluice::kernels {
namespace {

// clang 14 does not know this feature by name.
bool HasF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() {
  // __builtin_cpu_supports also asks XGETBV whether the operating system saves the wide registers.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("gfni");
}

}  // namespace

IsaPath BestIsaPath() {
  if (HasAvx512()) return IsaPath::kAvx512;
  return HasAvx2() ? IsaPath::kAvx2 : IsaPath::kReference;
}

bool IsaPathAvailable(IsaPath path) {
  switch (path) {
    case IsaPath::kReference:
      return true;
    case IsaPath::kAvx2:
      return HasAvx2();
    case IsaPath::kAvx512:
      return HasAvx512();
  }
  return false;
}

std::vector<IsaPath> AvailableIsaPaths() {
  std::vector<IsaPath> paths;
  for (IsaPath path : {IsaPath::kReference, IsaPath::kAvx2, IsaPath::kAvx512}) {
    if (IsaPathAvailable(path)) paths.push_back(path);
  }
  return paths;
}

absl::string_view IsaPathName(IsaPath path) {
  switch (path) {
    case IsaPath::kReference:
      return "reference";
    case IsaPath::kAvx2:
      return "avx2";
    case IsaPath::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<IsaPath> ParseIsaPath(absl::string_view name) {
  if (name == "auto") return BestIsaPath();
  for (IsaPath path : {IsaPath::kReference, IsaPath::kAvx2, IsaPath::kAvx512}) {
    if (name == IsaPathName(path)) return path;
  }
  return std::nullopt;
}

}  // namespace sluice::kernels
