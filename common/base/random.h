// Random numbers: a seeded generator for decisions (replayable in the simulation) and a counter
// generator for sampling.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace sluice {

// Source of 64-bit values. Thread-compatible.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual uint64_t Next64() = 0;

  // Uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound);
  // Uniform in [0, 1).
  double Unit();
  Id128 NextId128();
};

// SplitMix64: fast, replayable from its seed; not for secrets.
class SeededRandom final : public RandomSource {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next64() override;

 private:
  uint64_t state_;
};

// The kernel's generator: lease ids, incarnations and anything a stranger must not guess.
// Thread-safe.
class SecureRandom final : public RandomSource {
 public:
  uint64_t Next64() override;
};

// Stateless mixing function of SplitMix64.
inline uint64_t Mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// Noise for sampling: depends on nothing but its arguments, so a stream that moves to another
// worker draws the same numbers.
class CounterNoise {
 public:
  CounterNoise(uint64_t seed, uint32_t choice, uint64_t position);
  // Uniform in (0, 1). `lane` tells apart draws for the same position (a token id for Gumbel
  // noise).
  double Uniform(uint64_t lane) const {
    const uint64_t state = Mix64(state_ ^ (lane * 0xD6E8FEB86659FD93ULL + 1));
    return (static_cast<double>(state >> 12) + 0.5) * 0x1.0p-52;
  }

 private:
  uint64_t state_;
};

}  // namespace sluice
