// Partials, the exponential and register tiles for any vector width. Included only by the files of
// one instruction set, each with its own Simd; internal linkage, as for everything there.
#pragma once

#include "kernels/attention/partial.h"
#include "kernels/unroll.h"

namespace sluice::kernels {
namespace {

constexpr int kTileVectors = 4;  // query vectors of a register tile

// Calls fn<n>() for n = 1..kTileVectors.
template <class Fn>
void WithVectors(int n, Fn fn) {
  switch (n) {
    case 4:
      return fn.template operator()<4>();
    case 3:
      return fn.template operator()<3>();
    case 2:
      return fn.template operator()<2>();
    default:
      return fn.template operator()<1>();
  }
}

// Scores come to base 2: exp is then a shift and a polynomial.
constexpr float kLog2E = 1.44269504f;

// 2^f = 1 + f (c1 + f (c2 + ...)) on [-0.5, 0.5]: minimax with relative error 2e-9, so float32
// rounding decides.
constexpr float kExp2[] = {1.0f,
                           0.6931471824645996f,
                           0.24022647738456726f,
                           0.055503323674201965f,
                           0.00961843691766262f,
                           0.0013398873852565885f,
                           0.00015353361959569156f};
// Weights below 2^-126 would be subnormal; they are nothing beside the maximum's weight of 1.
constexpr float kExp2Min = -126.0f;

// The polynomial at f.
template <class Simd>
typename Simd::Vec Exp2Fraction(typename Simd::Vec f) {
  typename Simd::Vec p = Simd::Set1(kExp2[6]);
  SLUICE_UNROLL
  for (int i = 5; i >= 0; --i) p = Simd::Fma(p, f, Simd::Set1(kExp2[i]));
  return p;
}

// As ReferenceMerge, scores to base 2.
template <class Simd>
void FastMerge(float* state, const float* partial, int dim) {
  using Vec = typename Simd::Vec;
  const float max = state[0] > partial[0] ? state[0] : partial[0];
  const Vec old_weight = Simd::Exp2(Simd::Set1(state[0] - max));
  const Vec new_weight = Simd::Exp2(Simd::Set1(partial[0] - max));
  float sum[Simd::kLanes];
  Simd::Store(sum, Simd::Fma(Simd::Set1(state[1]), old_weight,
                             Simd::Mul(Simd::Set1(partial[1]), new_weight)));
  state[0] = max;
  state[1] = sum[0];
  for (int d = kPartialHead; d < kPartialHead + dim; d += Simd::kLanes) {
    const Vec added = Simd::Mul(Simd::Load(partial + d), new_weight);
    Simd::Store(state + d, Simd::Fma(Simd::Load(state + d), old_weight, added));
  }
}

template <class Simd>
void FastFinish(const float* state, int dim, float* out) {
  const typename Simd::Vec factor = Simd::Set1(1.0f / state[1]);
  for (int d = 0; d < dim; d += Simd::kLanes) {
    Simd::Store(out + d, Simd::Mul(Simd::Load(state + kPartialHead + d), factor));
  }
}

}  // namespace
}  // namespace sluice::kernels
