// Random matrices in every storage format, for tests and benchmarks of this folder.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/fp/fp.h"
#include "kernels/linear/weight_format.h"

namespace sluice::kernels {

// Storage aligned as packed data must be.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t size) : storage_(static_cast<size_t>(size) + 64) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (64 - address % 64) % 64;
  }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  uint8_t* data() { return data_; }

 private:
  std::vector<uint8_t> storage_;
  uint8_t* data_;
};

// Values roughly normal with deviation 1.
inline std::vector<float> RandomFloats(int64_t count, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += random.Unit() - 0.5;
    value = static_cast<float>(sum * 1.7320508);
  }
  return values;
}

// n rows of k elements: every code random, scales and minima of either sign and about 0.01.
class TestMatrix {
 public:
  TestMatrix(WeightFormat format, int64_t n, int64_t k, uint64_t seed)
      : row_bytes_(RowBytes(format, k)), bytes_(static_cast<size_t>(n * row_bytes_)) {
    SeededRandom random(seed);
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random.Next64());
    for (int64_t block = 0; block < n * k / BlockElements(format); ++block) {
      FixBlock(format, random, bytes_.data() + block * BlockBytes(format));
    }
    for (int64_t row = 0; row < n; ++row) rows_.push_back(bytes_.data() + row * row_bytes_);
  }
  TestMatrix(const TestMatrix&) = delete;
  TestMatrix& operator=(const TestMatrix&) = delete;

  const std::vector<const uint8_t*>& rows() const { return rows_; }

 private:
  // Puts sane floats where random bytes would be NaN or huge.
  static void FixBlock(WeightFormat format, SeededRandom& random, uint8_t* block) {
    const float value = static_cast<float>(random.Unit() - 0.5) * 0.02f;
    const uint16_t half = FloatToF16(value);
    const uint16_t minimum = FloatToF16(static_cast<float>(random.Unit() - 0.5) * 0.1f);
    const uint16_t bf16 = FloatToBf16(value);
    switch (format) {
      case WeightFormat::kF32:
        std::memcpy(block, &value, 4);
        return;
      case WeightFormat::kF16:
        std::memcpy(block, &half, 2);
        return;
      case WeightFormat::kBf16:
        std::memcpy(block, &bf16, 2);
        return;
      case WeightFormat::kQ8_0:
      case WeightFormat::kQ4_0:
      case WeightFormat::kQ5_0:
        std::memcpy(block, &half, 2);
        return;
      case WeightFormat::kQ4_1:
      case WeightFormat::kQ5_1:
      case WeightFormat::kQ4_K:
      case WeightFormat::kQ5_K:
        std::memcpy(block, &half, 2);
        std::memcpy(block + 2, &minimum, 2);
        return;
      case WeightFormat::kQ6_K:
        std::memcpy(block + 208, &half, 2);
        return;
    }
  }

  int64_t row_bytes_;
  std::vector<uint8_t> bytes_;
  std::vector<const uint8_t*> rows_;
};

}  // namespace sluice::kernels
