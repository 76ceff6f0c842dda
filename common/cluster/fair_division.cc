#include "cluster/fair_division.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice::cluster {
namespace {

constexpr uint64_t kQuantityMax = uint64_t{1} << 53;  // doubles count exactly up to here

// A claim in numbers that are exact: 0 <= floor <= wanted <= kQuantityMax.
struct Bounds {
  double weight;
  double floor;
  double wanted;
};

// At `level` a part begins to grow by its weight (above its floor), or stops (at what is wanted).
struct Turn {
  double level;
  double weight_change;
};

// The level at which the parts have grown from their floors by `spare` together.
double FindLevel(double spare, absl::Span<const Bounds> claims) {
  std::vector<Turn> turns;
  turns.reserve(2 * claims.size());
  for (const Bounds& claim : claims) {
    turns.push_back({claim.floor / claim.weight, claim.weight});
    turns.push_back({claim.wanted / claim.weight, -claim.weight});
  }
  std::sort(turns.begin(), turns.end(),
            [](const Turn& a, const Turn& b) { return a.level < b.level; });
  double level = 0;
  double weight = 0;
  for (const Turn& turn : turns) {
    const double growth = (turn.level - level) * weight;
    if (weight > 0 && growth >= spare) return level + spare / weight;
    spare -= growth;
    level = turn.level;
    weight += turn.weight_change;
  }
  return level;
}

}  // namespace

std::vector<uint64_t> DivideFairly(uint64_t capacity, absl::Span<const Claim> claims) {
  capacity = std::min(capacity, kQuantityMax);
  std::vector<Bounds> bounds;
  bounds.reserve(claims.size());
  double floors = 0;
  for (const Claim& claim : claims) {
    SLUICE_CHECK(claim.weight > 0 && std::isfinite(claim.weight));
    const uint64_t wanted = std::min(claim.wanted, kQuantityMax);
    bounds.push_back({claim.weight, static_cast<double>(std::min(claim.floor, wanted)),
                      static_cast<double>(wanted)});
    floors += bounds.back().floor;
  }
  const double room = static_cast<double>(capacity);
  const bool floors_fit = floors <= room;
  const double level = floors_fit ? FindLevel(room - floors, bounds) : 0;

  std::vector<uint64_t> parts;
  parts.reserve(claims.size());
  uint64_t left = capacity;
  for (const Bounds& claim : bounds) {
    const double part = floors_fit ? std::clamp(claim.weight * level, claim.floor, claim.wanted)
                                   : claim.floor * (room / floors);
    parts.push_back(std::min(static_cast<uint64_t>(part), left));
    left -= parts.back();
  }
  // Every part that is no whole number lost less than one unit; one that is its floor lost nothing.
  for (size_t i = 0; i < parts.size() && left > 0; ++i) {
    const Bounds& claim = bounds[i];
    if (floors_fit && claim.weight * level < claim.floor) continue;
    if (static_cast<double>(parts[i]) + 1 > (floors_fit ? claim.wanted : claim.floor)) continue;
    ++parts[i];
    --left;
  }
  return parts;
}

}  // namespace sluice::cluster
