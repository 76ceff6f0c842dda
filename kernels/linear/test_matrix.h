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
      : bytes_(static_cast<size_t>(n * RowBytes(format, k))) {
    SeededRandom random(seed);
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random.Next64());
    for (int64_t block = 0; block < n * k / BlockElements(format); ++block) {
      FixBlock(format, random, bytes_.data() + block * BlockBytes(format));
    }
    MakeScales(format, n * RowScales(format, k), random);
    if (format == WeightFormat::kBf16Palette) MakePalette(n, k, random);
    for (int64_t row = 0; row < n; ++row) {
      WeightRow one;
      one.data = bytes_.data() + row * RowBytes(format, k);
      if (scale_bytes_ > 0) {
        one.scales = scales_.data() + row * RowScales(format, k) * scale_bytes_;
        one.scale_type = scale_type_;
        if (format == WeightFormat::kNvFp4) one.factor = 0.01f * static_cast<float>(row % 3 + 1);
      }
      if (format == WeightFormat::kBf16Palette) {
        one.scales = scales_.data();
        one.scale_type = scale_type_;
      }
      rows_.push_back(one);
    }
  }
  TestMatrix(const TestMatrix&) = delete;
  TestMatrix& operator=(const TestMatrix&) = delete;

  const std::vector<WeightRow>& rows() const { return rows_; }

 private:
  // Scales in a tensor of their own, in a type that the format takes.
  void MakeScales(WeightFormat format, int64_t count, SeededRandom& random) {
    if (count == 0) return;
    scale_type_ = ScaleType::kBf16;
    if (format == WeightFormat::kFp8Block) scale_type_ = ScaleType::kF32;
    if (format == WeightFormat::kNvFp4) scale_type_ = ScaleType::kE4m3;
    scale_bytes_ = scale_type_ == ScaleType::kF32 ? 4 : scale_type_ == ScaleType::kBf16 ? 2 : 1;
    scales_.resize(static_cast<size_t>(count * scale_bytes_));
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random.Unit() - 0.5) * 0.02f;
      uint8_t* const at = scales_.data() + i * scale_bytes_;
      const uint16_t bf16 = FloatToBf16(value);
      if (scale_type_ == ScaleType::kF32) std::memcpy(at, &value, 4);
      if (scale_type_ == ScaleType::kBf16) std::memcpy(at, &bf16, 2);
      if (scale_type_ == ScaleType::kE4m3) *at = FloatToE4m3(value * 1000);
    }
  }

  // One palette for all rows, and every row misses it in as many elements as it may; every third
  // row leaves one entry unused.
  void MakePalette(int64_t n, int64_t k, SeededRandom& random) {
    scale_type_ = ScaleType::kPalette;
    for (int i = 0; i < 16; ++i) scales_.push_back(static_cast<uint8_t>(110 + i));
    const int64_t row_bytes = RowBytes(WeightFormat::kBf16Palette, k);
    for (int64_t row = 0; row < n; ++row) {
      uint8_t* at = bytes_.data() + row * row_bytes + k + (k + 1) / 2;
      for (int64_t m = 0; m < PaletteMisses(k); ++m, at += kPaletteMissBytes) {
        const bool unused = row % 3 == 0 && m == 0;
        const uint32_t element =
            unused ? kNoPaletteMiss : static_cast<uint32_t>(random.Unit() * static_cast<double>(k));
        const uint16_t bf16 = FloatToBf16(static_cast<float>(random.Unit() - 0.5) * 1e-6f);
        std::memcpy(at, &element, 4);
        std::memcpy(at + 4, &bf16, 2);
      }
    }
  }

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
      case WeightFormat::kFp8Block:
      case WeightFormat::kFp8Channel:
        if ((*block & 0x7f) == 0x7f) *block ^= 1;  // the NaN codes
        return;
      case WeightFormat::kInt4:
      case WeightFormat::kNvFp4:
      case WeightFormat::kBf16Palette:
        return;
    }
  }

  std::vector<uint8_t> bytes_;
  ScaleType scale_type_ = ScaleType::kNone;
  int64_t scale_bytes_ = 0;
  std::vector<uint8_t> scales_;
  std::vector<WeightRow> rows_;
};

}  // namespace sluice::kernels
