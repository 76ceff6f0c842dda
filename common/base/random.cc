#include "base/random.h"

#include <sys/random.h>

#include "base/check.h"

namespace sluice {

uint64_t RandomSource::Below(uint64_t bound) {
  SLUICE_CHECK(bound > 0);
  // Multiply-shift with rejection of the biased low range (Lemire 2019).
  for (;;) {
    const unsigned __int128 product = static_cast<unsigned __int128>(Next64()) * bound;
    const uint64_t low = static_cast<uint64_t>(product);
    if (low >= bound || low >= (0 - bound) % bound) return static_cast<uint64_t>(product >> 64);
  }
}

double RandomSource::Unit() { return static_cast<double>(Next64() >> 11) * 0x1.0p-53; }

Id128 RandomSource::NextId128() {
  const uint64_t high = Next64();
  return {high, Next64()};
}

uint64_t SeededRandom::Next64() {
  state_ += 0x9E3779B97F4A7C15ULL;
  return Mix64(state_);
}

uint64_t SecureRandom::Next64() {
  uint64_t value = 0;
  SLUICE_CHECK(getrandom(&value, sizeof(value), 0) == static_cast<ssize_t>(sizeof(value)));
  return value;
}

CounterNoise::CounterNoise(uint64_t seed, uint32_t choice, uint64_t position) {
  state_ = Mix64(seed + 0x9E3779B97F4A7C15ULL);
  state_ = Mix64(state_ ^ (choice + 0xD1B54A32D192ED03ULL));
  state_ = Mix64(state_ ^ (position * 0x9E3779B97F4A7C15ULL));
}

}  // namespace sluice
