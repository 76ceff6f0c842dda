// What each instruction-set file provides to peak.cc.
#pragma once

#include <cstdint>

#include "kernels/peak/peak.h"

namespace sluice::kernels {

namespace avx2 {
int64_t RunPeak(PeakKind kind, int64_t rounds);
}
namespace avx512 {
int64_t RunPeak(PeakKind kind, int64_t rounds);
}

}  // namespace sluice::kernels
