#include "kernels/peak/peak.h"

#include "kernels/peak/peak_paths.h"

namespace sluice::kernels {

int64_t RunPeak(IsaPath path, PeakKind kind, int64_t rounds) {
  switch (path) {
    case IsaPath::kReference:
      return 0;
    case IsaPath::kAvx2:
      return avx2::RunPeak(kind, rounds);
    case IsaPath::kAvx512:
      return avx512::RunPeak(kind, rounds);
  }
  return 0;
}

}  // namespace sluice::kernels
