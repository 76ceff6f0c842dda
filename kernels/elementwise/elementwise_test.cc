#include "kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"

namespace sluice::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Uniform(int64_t n, float low, float high, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = low + (high - low) * static_cast<float>(random.Unit());
  return values;
}

// Lengths around the vector width and a model's.
const std::vector<int64_t> kLengths = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 576, 1000};

class ElementwiseTest : public testing::TestWithParam<IsaPath> {
 protected:
  IsaPath path() const { return GetParam(); }
};

TEST_P(ElementwiseTest, RmsNormMatchesDoublePrecision) {
  for (int64_t n : kLengths) {
    const std::vector<float> x = Uniform(n, -3, 3, 1);
    const std::vector<float> weight = Uniform(n, 0.5f, 2, 2);
    std::vector<float> y(static_cast<size_t>(n));
    RmsNorm(path(), x.data(), weight.data(), 1e-5f, n, y.data());
    double sum = 0;
    for (float v : x) sum += double{v} * double{v};
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(n) + 1e-5f);
    // The sum is made of n / 16 + 16 roundings of relative size 2^-24, halved by the root; a few
    // more follow.
    const double relative = (static_cast<double>(n) / 32 + 16) * 0x1p-24;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = x[i] * inverse * double{weight[i]};
      ASSERT_NEAR(y[i], expected, std::abs(expected) * relative) << n << " " << i;
    }
    std::vector<float> in_place = x;
    RmsNorm(path(), in_place.data(), weight.data(), 1e-5f, n, in_place.data());
    ASSERT_EQ(in_place, y);
  }
}

TEST_P(ElementwiseTest, SiluMultiplyMatchesDoublePrecisionOverTheWholeRange) {
  for (int64_t n : kLengths) {
    std::vector<float> gate = Uniform(n, -20, 20, 3);
    gate[0] = n % 2 == 0 ? -200.0f : 200.0f;
    const std::vector<float> up = Uniform(n, -2, 2, 4);
    std::vector<float> y(static_cast<size_t>(n));
    SiluMultiply(path(), gate.data(), up.data(), n, y.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double expected = gate[i] / (1.0 + std::exp(-double{gate[i]})) * double{up[i]};
      ASSERT_NEAR(y[i], expected, std::abs(expected) * 1e-6 + 1e-30) << gate[i];
    }
    std::vector<float> in_place = gate;
    SiluMultiply(path(), in_place.data(), up.data(), n, in_place.data());
    ASSERT_EQ(in_place, y);
  }
}

TEST_P(ElementwiseTest, AdditionsRoundEachStep) {
  for (int64_t n : kLengths) {
    const std::vector<float> x = Uniform(n, -3, 3, 5);
    const std::vector<float> y = Uniform(n, -3, 3, 6);
    std::vector<float> sum = x;
    AddInPlace(path(), y.data(), n, sum.data());
    std::vector<float> scaled = x;
    AddScaledInPlace(path(), y.data(), 0.3f, n, scaled.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(sum[i], x[i] + y[i]);
      const volatile float product = 0.3f * y[i];
      ASSERT_EQ(scaled[i], x[i] + product);
    }
  }
}

TEST_P(ElementwiseTest, RopeRotatesPairsAndLeavesTheRestOfAHead) {
  for (RopeOrder order : {RopeOrder::kHalfSplit, RopeOrder::kInterleaved}) {
    for (int64_t pairs : {1, 2, 8, 13, 32}) {
      const int64_t head_stride = 2 * pairs + 5;
      constexpr int64_t kHeads = 3;
      const std::vector<float> inv_freq = Uniform(pairs, 0, 1, 7);
      std::vector<float> cos(static_cast<size_t>(pairs));
      std::vector<float> sin(static_cast<size_t>(pairs));
      RopeAngles(inv_freq.data(), pairs, 1234, 1.5f, cos.data(), sin.data());
      const std::vector<float> x = Uniform(kHeads * head_stride, -1, 1, 8);
      std::vector<float> y = x;
      ApplyRope(path(), order, cos.data(), sin.data(), pairs, kHeads, head_stride, y.data());
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < pairs; ++i) {
          const bool split = order == RopeOrder::kHalfSplit;
          const size_t first = static_cast<size_t>(h * head_stride + (split ? i : 2 * i));
          const size_t second = first + static_cast<size_t>(split ? pairs : 1);
          const double angle = 1234.0f * inv_freq[static_cast<size_t>(i)];
          const double c = 1.5 * std::cos(angle);
          const double s = 1.5 * std::sin(angle);
          ASSERT_NEAR(y[first], x[first] * c - x[second] * s, 1e-6);
          ASSERT_NEAR(y[second], x[second] * c + x[first] * s, 1e-6);
        }
        for (int64_t i = 2 * pairs; i < head_stride; ++i) {
          const size_t at = static_cast<size_t>(h * head_stride + i);
          ASSERT_EQ(y[at], x[at]);
        }
      }
    }
  }
}

TEST(Rope, AnglesAreFloat32Products) {
  const float inv_freq[2] = {1.0f, 0.1f};
  float cos[2];
  float sin[2];
  RopeAngles(inv_freq, 2, 100003, 1.0f, cos, sin);
  const float angle =
      100003.0f * 0.1f;  // differs from the double product in the fourth digit of its cosine
  EXPECT_NEAR(cos[1], std::cos(double{angle}), 1e-7);
  EXPECT_NEAR(sin[1], std::sin(double{angle}), 1e-7);
  EXPECT_NEAR(cos[0], std::cos(100003.0), 1e-7);
  RopeAngles(inv_freq, 2, 0, 1.0f, cos, sin);
  EXPECT_EQ(cos[0], 1.0f);
  EXPECT_EQ(sin[1], 0.0f);
}

TEST_P(ElementwiseTest, SoftmaxAndLogSumExpMatchDoublePrecision) {
  for (int64_t n : kLengths) {
    std::vector<float> x = Uniform(n, -30, 10, 9);
    if (n > 3) x[2] = -kInf;
    if (n > 3) x[3] = -500.0f;
    double largest = -1e9;
    for (float v : x) largest = std::max(largest, double{v});
    double sum = 0;
    for (float v : x) sum += std::exp(v - largest);
    std::vector<float> y(static_cast<size_t>(n));
    Softmax(path(), x.data(), n, y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = std::exp(x[i] - largest) / sum;
      // The argument of exp is rounded to 2^-24 of up to 40; the sum adds n roundings.
      ASSERT_NEAR(y[i], expected, expected * (4e-6 + static_cast<double>(n) * 0x1p-24) + 1e-37)
          << i;
    }
    if (n > 3) {
      EXPECT_EQ(y[2], 0.0f);
      EXPECT_EQ(y[3], 0.0f);
    }
    EXPECT_NEAR(LogSumExp(path(), x.data(), n), largest + std::log(sum), 1e-5);
    std::vector<float> in_place = x;
    Softmax(path(), in_place.data(), n, in_place.data());
    EXPECT_EQ(in_place, y);
  }
}

TEST_P(ElementwiseTest, ArgMaxTakesTheLowestIdOnTiesAndSkipsNan) {
  for (int64_t n : kLengths) {
    std::vector<float> x = Uniform(n, -1, 1, 10);
    for (int64_t at = 0; at < n; at += 7) {
      std::vector<float> peak = x;
      peak[static_cast<size_t>(at)] = 5.0f;
      EXPECT_EQ(ArgMax(path(), peak.data(), n), at);
      peak[static_cast<size_t>(n - 1)] = 5.0f;
      EXPECT_EQ(ArgMax(path(), peak.data(), n), at);
      if (at > 0) peak[static_cast<size_t>(at - 1)] = kNan;
      EXPECT_EQ(ArgMax(path(), peak.data(), n), at);
    }
    std::vector<float> all_nan(static_cast<size_t>(n), kNan);
    EXPECT_EQ(ArgMax(path(), all_nan.data(), n), 0);
    std::vector<float> all_low(static_cast<size_t>(n), -kInf);
    EXPECT_EQ(ArgMax(path(), all_low.data(), n), 0);
  }
}

TEST_P(ElementwiseTest, NanStaysVisible) {
  std::vector<float> x(20, 1.0f);
  x[3] = kNan;
  const std::vector<float> weight(20, 1.0f);
  std::vector<float> y(20);
  RmsNorm(path(), x.data(), weight.data(), 1e-5f, 20, y.data());
  EXPECT_TRUE(std::isnan(y[0]));
  SiluMultiply(path(), x.data(), weight.data(), 20, y.data());
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_FALSE(std::isnan(y[4]));
  EXPECT_TRUE(std::isnan(LogSumExp(path(), x.data(), 20)));
}

TEST(ElementwisePaths, Avx2AndAvx512HaveTheSameBits) {
  if (!IsaPathAvailable(IsaPath::kAvx512)) return;  // one path has nothing to differ from
  for (int64_t n : kLengths) {
    const std::vector<float> x = Uniform(n, -40, 40, 11);
    const std::vector<float> weight = Uniform(n, -2, 2, 12);
    std::vector<float> out[2][3];
    for (int p = 0; p < 2; ++p) {
      const IsaPath path = p == 0 ? IsaPath::kAvx2 : IsaPath::kAvx512;
      for (auto& v : out[p]) v.resize(static_cast<size_t>(n) + 1);
      RmsNorm(path, x.data(), weight.data(), 1e-6f, n, out[p][0].data());
      SiluMultiply(path, x.data(), weight.data(), n, out[p][1].data());
      Softmax(path, x.data(), n, out[p][2].data());
      out[p][2][static_cast<size_t>(n)] = LogSumExp(path, x.data(), n);
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(out[0][i], out[1][i]) << n << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, ElementwiseTest, testing::ValuesIn(AvailableIsaPaths()),
                         [](const auto& test) { return std::string(IsaPathName(test.param)); });

}  // namespace
}  // namespace sluice::kernels
