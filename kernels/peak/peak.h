// How many multiplications and additions one core can issue at all: what kernels are measured
// against.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace sluice::kernels {

// The instruction that a kernel's inner loop consists of.
enum class PeakKind : uint8_t {
  kFloat32,  // fused multiply-add
  kInt16,    // pairs of int16 added to int32: vpdpwssd, or vpmaddwd and vpaddd
  kInt8,     // quads of int8: vpdpbusd added to int32, or vpmaddubsw and vpaddw added to int16
};

// Issues `rounds` rounds of independent instructions and returns how many operations
// (multiplications and additions) they made; 0 on the reference path, which has no such
// instruction. Takes about 10 ns a round. Needs: path available. Threads: safe.
int64_t RunPeak(IsaPath path, PeakKind kind, int64_t rounds);

}  // namespace sluice::kernels
