#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <vector>

#include "kernels/linear/code_block.h"
#include "kernels/linear/paths.h"
#include "kernels/linear/test_matrix.h"

namespace sluice::kernels {
namespace {

struct Case {
  IsaPath path;
  WeightFormat format;
  ActivationKind blocks = ActivationKind::kInt16;
};

PackedMatrix Describe(Case c, int64_t n, int64_t k) {
  return DescribePacked(c.path, c.format, n, k, c.blocks);
}

bool ReadsInt8(Case c) {
  const int64_t k = BlockElements(c.format);
  return Describe({c.path, c.format, ActivationKind::kInt8}, 16, k).activations ==
         ActivationKind::kInt8;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (IsaPath path : AvailableIsaPaths()) {
    for (WeightFormat format : kAllWeightFormats) {
      cases.push_back({path, format});
      const Case int8 = {path, format, ActivationKind::kInt8};
      if (ReadsInt8(int8)) cases.push_back(int8);
    }
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return std::string(IsaPathName(info.param.path)) + "_" +
         std::string(WeightFormatName(info.param.format)) +
         (info.param.blocks == ActivationKind::kInt8 ? "_int8" : "");
}

// A source matrix with its packed form.
struct Packed {
  Packed(Case c, int64_t n, int64_t k, uint64_t seed)
      : source(c.format, n, k, seed), data(Describe(c, n, k).bytes()) {
    matrix = Pack(c.path, c.format, n, k, source.rows(), data.data(), c.blocks);
  }
  TestMatrix source;
  AlignedBytes data;
  PackedMatrix matrix;
};

// y of all panels; elements that Forward must not touch stay `kUntouched`.
constexpr float kUntouched = 12345.0f;
std::vector<float> Multiply(const PackedMatrix& matrix, const float* x, int64_t rows) {
  AlignedBytes prepared(rows * PreparedRowBytes(matrix.activations, matrix.k));
  PrepareActivations(matrix, x, rows, matrix.k, prepared.data());
  const int64_t stride = matrix.n + 3;
  std::vector<float> y(static_cast<size_t>(rows * stride), kUntouched);
  Forward(matrix, prepared.data(), rows, 0, matrix.panels(), y.data(), stride);
  return y;
}

// Codes of a block of activations reach from minus this to this.
double LargestCodeOf(const PackedMatrix& matrix) {
  return double{matrix.activations == ActivationKind::kInt8 ? Int8Block::kLargestCode
                                                            : Int16Block::kLargestCode};
}

// What the kernel reads as x, from the prepared row.
std::vector<double> PreparedValues(const PackedMatrix& matrix, const uint8_t* prepared) {
  std::vector<double> values(static_cast<size_t>(matrix.k));
  for (size_t i = 0; i < values.size(); ++i) {
    if (matrix.activations == ActivationKind::kFloat32) {
      values[i] = reinterpret_cast<const float*>(prepared)[i];
    } else if (matrix.activations == ActivationKind::kInt8) {
      const Int8Block& block = reinterpret_cast<const Int8Block*>(prepared)[i / kBlock];
      values[i] = double{block.scale} * block.codes[i % kBlock];
    } else {
      const Int16Block& block = reinterpret_cast<const Int16Block*>(prepared)[i / kBlock];
      constexpr size_t kOrder[4] = {0, 2, 1, 3};
      values[i] = double{block.scale} * block.codes[i % kBlock / 4 * 4 + kOrder[i % 4]];
    }
  }
  return values;
}

// Sum over i of |x_i| * (|scale * code| + |minimum|): what rounding errors of the sum are relative
// to.
double Magnitude(const Packed& p, int64_t row, const std::vector<double>& x,
                 const std::vector<float>& w) {
  const BlockLayout layout = BlockLayoutOf(p.matrix.format);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double weight = std::abs(double{w[i]});
    // e2m1 has no minimum: its weights are what is summed.
    if (layout.bits != 0 && !layout.e2m1 && p.matrix.path != IsaPath::kReference) {
      CodeBlock block;
      LoadCodeBlock(p.matrix.format, p.source.rows()[static_cast<size_t>(row)], p.matrix.k,
                    static_cast<int64_t>(i) / kBlock, &block);
      // The offset of symmetric formats is subtracted in integers: exact, so it adds no magnitude.
      const int code = block.codes[i % kBlock] - layout.offset;
      weight = std::abs(double{block.scales[i % kBlock / 16]} * code) + std::abs(block.minimum);
    }
    sum += std::abs(x[i]) * weight;
  }
  return sum;
}

// One element of y is a chain of at most 4 roundings per term of k, each of relative size 2^-24 of
// a partial sum that is at most `magnitude`.
double SumTolerance(const PackedMatrix& matrix, double magnitude) {
  return static_cast<double>(4 * matrix.k) * 0x1p-24 * magnitude + 1e-30;
}

class LinearTest : public testing::TestWithParam<Case> {
 protected:
  // A k that fits the format: block formats need whole blocks, the others take any.
  static int64_t FitK(int64_t k) {
    const int64_t block = BlockElements(GetParam().format);
    return (k + block - 1) / block * block;
  }
};

TEST_P(LinearTest, UnpackedRowsAreTheStoredValues) {
  const int64_t k = FitK(70);
  const Packed p(GetParam(), 37, k, 1);
  const WeightFormat format = GetParam().format;
  const bool scales_rounded =
      BlockElements(format) == 256 && GetParam().path != IsaPath::kReference;
  std::vector<float> expected(static_cast<size_t>(k));
  std::vector<float> actual(static_cast<size_t>(k));
  for (int64_t row = 0; row < 37; ++row) {
    DequantizeRow(format, p.source.rows()[static_cast<size_t>(row)], k, expected.data());
    UnpackRow(p.matrix, row, actual.data());
    const std::vector<double> ones(static_cast<size_t>(k), 1.0);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!scales_rounded) {
        ASSERT_EQ(actual[i], expected[i]) << row << " " << i;
      } else {
        CodeBlock block;
        LoadCodeBlock(format, p.source.rows()[static_cast<size_t>(row)], k,
                      static_cast<int64_t>(i) / kBlock, &block);
        // f16 rounds scale and minimum: half a unit in 11 bits, or in 2^-24 below the normal range.
        const double magnitude = std::abs(expected[i] - block.minimum) + std::abs(block.minimum);
        ASSERT_NEAR(actual[i], expected[i], magnitude * 0x1p-11 + 64 * 0x1p-25) << row << " " << i;
      }
    }
  }
}

TEST_P(LinearTest, ProductMatchesTheSumInDoublePrecision) {
  for (int64_t k : {int64_t{32}, int64_t{61}, int64_t{96}, int64_t{576}}) {
    k = FitK(k);
    for (int64_t n : {int64_t{1}, int64_t{16}, int64_t{50}, int64_t{112}}) {
      const Packed p(GetParam(), n, k, static_cast<uint64_t>(n * k));
      const int64_t rows = 11;
      const std::vector<float> x = RandomFloats(rows * k, 3);
      const std::vector<float> y = Multiply(p.matrix, x.data(), rows);
      const int64_t row_bytes = PreparedRowBytes(p.matrix.activations, k);
      AlignedBytes prepared(rows * row_bytes);
      PrepareActivations(p.matrix, x.data(), rows, k, prepared.data());
      std::vector<float> w(static_cast<size_t>(k));
      for (int64_t j = 0; j < n; ++j) {
        UnpackRow(p.matrix, j, w.data());
        for (int64_t r = 0; r < rows; ++r) {
          const std::vector<double> xr = PreparedValues(p.matrix, prepared.data() + r * row_bytes);
          double expected = 0;
          for (size_t i = 0; i < w.size(); ++i) expected += xr[i] * double{w[i]};
          ASSERT_NEAR(y[static_cast<size_t>(r * (n + 3) + j)], expected,
                      SumTolerance(p.matrix, Magnitude(p, j, xr, w)))
              << "n " << n << " k " << k << " row " << r << " output " << j;
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = n; j < n + 3; ++j) {
          ASSERT_EQ(y[static_cast<size_t>(r * (n + 3) + j)], kUntouched);
        }
      }
    }
  }
}

TEST_P(LinearTest, BitsOfARowDoNotDependOnTheBatch) {
  const int64_t k = FitK(200);
  const int64_t n = 89;
  const Packed p(GetParam(), n, k, 7);
  constexpr int64_t kRows = 40;
  const std::vector<float> x = RandomFloats(kRows * k, 8);
  std::vector<std::vector<float>> alone;
  for (int64_t r = 0; r < kRows; ++r) alone.push_back(Multiply(p.matrix, x.data() + r * k, 1));
  for (int64_t rows = 1; rows <= kRows; ++rows) {
    const int64_t first = kRows - rows;  // the position of a row in the batch changes too
    const std::vector<float> y = Multiply(p.matrix, x.data() + first * k, rows);
    for (int64_t r = 0; r < rows; ++r) {
      ASSERT_EQ(std::memcmp(y.data() + r * (n + 3), alone[static_cast<size_t>(first + r)].data(),
                            static_cast<size_t>(n) * sizeof(float)),
                0)
          << rows << " rows, row " << r;
    }
  }
}

TEST_P(LinearTest, BitsOfARowDoNotDependOnThePanelRange) {
  const int64_t k = FitK(100);
  const int64_t n = 16 * 9 + 5;
  const Packed p(GetParam(), n, k, 9);
  for (int64_t rows : {1, 2, 5, 8, 9}) {
    const std::vector<float> x = RandomFloats(rows * k, 10);
    const std::vector<float> whole = Multiply(p.matrix, x.data(), rows);
    AlignedBytes prepared(rows * PreparedRowBytes(p.matrix.activations, k));
    PrepareActivations(p.matrix, x.data(), rows, k, prepared.data());
    for (int64_t begin = 0; begin < p.matrix.panels(); ++begin) {
      for (int64_t end = begin; end <= p.matrix.panels(); ++end) {
        std::vector<float> y(static_cast<size_t>(rows * n), kUntouched);
        Forward(p.matrix, prepared.data(), rows, begin, end, y.data(), n);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t j = 0; j < n; ++j) {
            const float expected = j >= begin * 16 && j < end * 16
                                       ? whole[static_cast<size_t>(r * (n + 3) + j)]
                                       : kUntouched;
            ASSERT_EQ(y[static_cast<size_t>(r * n + j)], expected)
                << begin << " " << end << " " << j;
          }
        }
      }
    }
  }
}

// Against the reference path: activations rounded to the prepared kind, K-quant scales to f16.
TEST_P(LinearTest, StaysWithinTheRoundingOfTheReferencePath) {
  const int64_t k = FitK(320);
  const int64_t n = 48;
  const Packed p(GetParam(), n, k, 11);
  const Packed reference({IsaPath::kReference, GetParam().format}, n, k, 11);
  const std::vector<float> x = RandomFloats(2 * k, 12);
  const std::vector<float> y = Multiply(p.matrix, x.data(), 2);
  const std::vector<float> expected = Multiply(reference.matrix, x.data(), 2);
  std::vector<float> w(static_cast<size_t>(k));
  for (int64_t r = 0; r < 2; ++r) {
    const std::vector<double> xr(x.begin() + r * k, x.begin() + (r + 1) * k);
    for (int64_t j = 0; j < n; ++j) {
      UnpackRow(reference.matrix, j, w.data());
      const double magnitude = Magnitude(p, j, xr, w);
      double tolerance = 2 * SumTolerance(p.matrix, magnitude);
      if (BlockElements(GetParam().format) == 256) tolerance += 0x1p-10 * magnitude + 1e-6;
      for (size_t i = 0; i < w.size(); ++i) {
        double amax = 0;
        for (size_t b = i / 32 * 32; b < std::min(w.size(), i / 32 * 32 + 32); ++b) {
          amax = std::max(amax, std::abs(xr[b]));
        }
        if (p.matrix.activations != ActivationKind::kFloat32) {
          // Half a code, and what float32 rounds of the product with the inverse of the scale.
          tolerance += amax / (2 * LargestCodeOf(p.matrix)) * 1.02 * std::abs(double{w[i]});
        }
      }
      const size_t at = static_cast<size_t>(r * (n + 3) + j);
      ASSERT_NEAR(y[at], expected[at], tolerance) << r << " " << j;
    }
  }
}

// What the kernel reads as x is x to half a code of its block, in the order of k.
TEST_P(LinearTest, PreparedValuesAreCloseToTheGivenOnes) {
  const PackedMatrix matrix = Describe(GetParam(), 16, FitK(96));
  const std::vector<float> x = RandomFloats(matrix.k, 13);
  AlignedBytes prepared(PreparedRowBytes(matrix.activations, matrix.k));
  PrepareActivations(matrix, x.data(), 1, matrix.k, prepared.data());
  const std::vector<double> actual = PreparedValues(matrix, prepared.data());
  for (size_t i = 0; i < x.size(); ++i) {
    float amax = 0;
    for (size_t b = i / 32 * 32; b < std::min(x.size(), i / 32 * 32 + 32); ++b) {
      amax = std::max(amax, std::abs(x[b]));
    }
    const double tolerance = matrix.activations == ActivationKind::kFloat32
                                 ? 0.0
                                 : double{amax} / (2 * LargestCodeOf(matrix)) * 1.02;
    ASSERT_NEAR(actual[i], double{x[i]}, tolerance) << i;
  }
}

// Largest codes on both sides, at every position: sums of 32 products must not overflow.
TEST_P(LinearTest, ExtremeCodesDoNotOverflow) {
  const WeightFormat format = GetParam().format;
  const int64_t k = FitK(64);
  const int64_t n = 16;
  const BlockLayout layout = BlockLayoutOf(format);
  if (layout.bits == 0) return;  // no integer sums
  for (uint8_t fill : {uint8_t{0x00}, uint8_t{0xff}, uint8_t{0x80}, uint8_t{0x7f}}) {
    std::vector<uint8_t> bytes(static_cast<size_t>(RowBytes(format, k)), fill);
    const std::vector<uint16_t> bf16_ones(static_cast<size_t>(k), FloatToBf16(1.0f));
    const std::vector<uint8_t> e4m3_ones(static_cast<size_t>(k), FloatToE4m3(1.0f));
    WeightRow row;
    row.data = bytes.data();
    if (format == WeightFormat::kInt4) {
      row.scales = reinterpret_cast<const uint8_t*>(bf16_ones.data());
      row.scale_type = ScaleType::kBf16;
    } else if (format == WeightFormat::kNvFp4) {
      row.scales = e4m3_ones.data();
      row.scale_type = ScaleType::kE4m3;
    } else {
      for (int64_t at = 0; at < RowBytes(format, k); at += BlockBytes(format)) {
        uint8_t* block = bytes.data() + at;
        const uint16_t one = FloatToF16(1.0f);
        std::memcpy(block + (format == WeightFormat::kQ6_K ? 208 : 0), &one, 2);
        if (layout.affine) std::memcpy(block + 2, &one, 2);
      }
    }
    const std::vector<WeightRow> rows(static_cast<size_t>(n), row);
    AlignedBytes data(Describe(GetParam(), n, k).bytes());
    const PackedMatrix matrix =
        Pack(GetParam().path, format, n, k, rows, data.data(), GetParam().blocks);
    std::vector<float> w(static_cast<size_t>(k));
    UnpackRow(matrix, 3, w.data());
    for (float sign : {1.0f, -1.0f}) {
      const std::vector<float> x(static_cast<size_t>(k), 127.0f * sign);
      double expected = 0;
      for (float value : w) expected += double{value} * 127.0 * static_cast<double>(sign);
      EXPECT_NEAR(Multiply(matrix, x.data(), 1)[3], expected, 1e-5 * std::abs(expected) + 1e-3);
    }
  }
}

TEST_P(LinearTest, ZeroAndTinyActivationsGiveZeroOrTinyOutputs) {
  const int64_t k = FitK(64);
  const Packed p(GetParam(), 16, k, 14);
  for (float value : {0.0f, -0.0f, 1e-45f, 1e-38f, 1e-31f}) {
    const std::vector<float> x(static_cast<size_t>(k), value);
    const std::vector<float> y = Multiply(p.matrix, x.data(), 1);
    for (size_t j = 0; j < 16; ++j) ASSERT_LT(std::abs(y[j]), 1e-25f) << value;
  }
}

// Integer sums are exact and the float32 steps are the same, so these two paths agree in every bit.
TEST(LinearPaths, FastPathsHaveTheSameBits) {
  const std::vector<float> x = RandomFloats(5 * 768, 16);
  for (WeightFormat format : kAllWeightFormats) {
    for (ActivationKind blocks : {ActivationKind::kInt16, ActivationKind::kInt8}) {
      std::vector<float> first;
      for (IsaPath path : AvailableIsaPaths()) {
        if (path == IsaPath::kReference) continue;
        const Packed p({path, format, blocks}, 50, 768, 15);
        const std::vector<float> y = Multiply(p.matrix, x.data(), 5);
        if (first.empty()) first = y;
        EXPECT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(float)), 0)
            << WeightFormatName(format) << " on " << IsaPathName(path);
      }
    }
  }
}

// The palette is another coding of the same values, and the products have the same bits.
TEST(LinearPaths, PaletteHasTheBitsOfBf16) {
  const int64_t n = 50, k = 1030;
  const TestMatrix coded(WeightFormat::kBf16Palette, n, k, 17);
  std::vector<uint16_t> plain(static_cast<size_t>(n * k));
  std::vector<WeightRow> rows;
  std::vector<float> values(static_cast<size_t>(k));
  for (int64_t row = 0; row < n; ++row) {
    DequantizeRow(WeightFormat::kBf16Palette, coded.rows()[static_cast<size_t>(row)], k,
                  values.data());
    for (int64_t i = 0; i < k; ++i) {
      plain[static_cast<size_t>(row * k + i)] = FloatToBf16(values[static_cast<size_t>(i)]);
    }
    WeightRow one;
    one.data = reinterpret_cast<const uint8_t*>(plain.data() + row * k);
    rows.push_back(one);
  }
  const std::vector<float> x = RandomFloats(9 * k, 18);
  for (IsaPath path : AvailableIsaPaths()) {
    AlignedBytes a(DescribePacked(path, WeightFormat::kBf16Palette, n, k).bytes());
    AlignedBytes b(DescribePacked(path, WeightFormat::kBf16, n, k).bytes());
    const auto palette = Pack(path, WeightFormat::kBf16Palette, n, k, coded.rows(), a.data());
    const auto bf16 = Pack(path, WeightFormat::kBf16, n, k, rows, b.data());
    for (int64_t count : {1, 2, 3, 9}) {
      const std::vector<float> y = Multiply(palette, x.data(), count);
      const std::vector<float> expected = Multiply(bf16, x.data(), count);
      EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
          << IsaPathName(path) << " " << count;
    }
  }
}

TEST(Linear, RefusesShapesThatAreBugs) {
  EXPECT_DEATH(DescribePacked(IsaPath::kReference, WeightFormat::kQ4_K, 4, 32), "Q4_K");
  EXPECT_DEATH(DescribePacked(IsaPath::kReference, WeightFormat::kF32, 0, 32), "0 x 32");
  const Packed p({IsaPath::kReference, WeightFormat::kF32}, 20, 8, 1);
  float y[20];
  AlignedBytes prepared(64);
  EXPECT_DEATH(Forward(p.matrix, prepared.data(), 1, 0, 3, y, 20), "panels 0..3 of 2");
  EXPECT_DEATH(UnpackRow(p.matrix, 20, y), "row 20 of 20");
}

INSTANTIATE_TEST_SUITE_P(Paths, LinearTest, testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace sluice::kernels
