// Divides a quantity among claimants: weighted max-min fairness with floors and caps.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice::cluster {

// What one claimant may get of a divided quantity.
struct Claim {
  double weight = 1;    // > 0 and finite
  uint64_t floor = 0;   // is given first, as far as it is wanted
  uint64_t wanted = 0;  // gets no more than this
};

// The parts, in the order of the claims. Their sum is `capacity`, or what all want if that is less.
// A part is weight * level, moved up to its floor and down to what is wanted, with one level for
// all (water filling, Bertsekas and Gallager 1992, section 6.5.2): nobody's part can grow without
// shrinking the part of one who has no more per weight. Floors that do not fit together shrink in
// proportion. Parts are whole numbers: what rounding leaves goes to the first claims that want
// more. Quantities beyond 2^53 count as 2^53. Pure; O(n log n).
std::vector<uint64_t> DivideFairly(uint64_t capacity, absl::Span<const Claim> claims);

}  // namespace sluice::cluster
