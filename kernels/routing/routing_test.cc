#include "kernels/routing/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace sluice::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

RouterParams Params(int32_t experts, int32_t topk) {
  RouterParams params;
  params.experts = experts;
  params.topk = topk;
  return params;
}

std::vector<RoutedExpert> Route(const RouterParams& params, const std::vector<float>& logits,
                                const std::vector<float>& bias = {}) {
  std::vector<float> scratch(static_cast<size_t>(RouterScratchFloats(params)));
  std::vector<RoutedExpert> out(static_cast<size_t>(params.topk));
  RouteRow(params, logits.data(), bias.empty() ? nullptr : bias.data(), scratch.data(), out.data());
  return out;
}

std::vector<int32_t> Experts(const std::vector<RoutedExpert>& routed) {
  std::vector<int32_t> experts;
  for (const RoutedExpert& one : routed) experts.push_back(one.expert);
  return experts;
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

TEST(Routing, SigmoidWeightsAreNormalisedAndScaled) {
  RouterParams params = Params(4, 2);
  params.scaling = 2.5f;
  const auto routed = Route(params, {0.0f, 2.0f, -1.0f, 1.0f});
  EXPECT_EQ(Experts(routed), (std::vector<int32_t>{1, 3}));
  const float sum = Sigmoid(2.0f) + Sigmoid(1.0f);
  EXPECT_FLOAT_EQ(routed[0].weight, 2.5f * Sigmoid(2.0f) / sum);
  EXPECT_FLOAT_EQ(routed[1].weight, 2.5f * Sigmoid(1.0f) / sum);
  params.normalize = false;
  EXPECT_FLOAT_EQ(Route(params, {0.0f, 2.0f, -1.0f, 1.0f})[0].weight, 2.5f * Sigmoid(2.0f));
}

TEST(Routing, TheBiasChoosesButDoesNotWeigh) {
  const auto routed = Route(Params(3, 1), {3.0f, 0.0f, 1.0f}, {0.0f, 0.6f, 0.0f});
  EXPECT_EQ(routed[0].expert, 1);
  EXPECT_FLOAT_EQ(routed[0].weight, 1.0f);
  RouterParams plain = Params(3, 1);
  plain.normalize = false;
  EXPECT_FLOAT_EQ(Route(plain, {3.0f, 0.0f, 1.0f}, {0.0f, 0.6f, 0.0f})[0].weight, 0.5f);
}

TEST(Routing, SoftmaxIsOverAllExperts) {
  RouterParams params = Params(3, 2);
  params.sigmoid = false;
  params.normalize = false;
  const auto routed = Route(params, {std::log(1.0f), std::log(2.0f), std::log(5.0f)});
  EXPECT_EQ(Experts(routed), (std::vector<int32_t>{2, 1}));
  EXPECT_NEAR(routed[0].weight, 5.0f / 8, 1e-6f);
  EXPECT_NEAR(routed[1].weight, 2.0f / 8, 1e-6f);
  params.normalize = true;
  EXPECT_NEAR(Route(params, {0.0f, std::log(2.0f), std::log(5.0f)})[0].weight, 5.0f / 7, 1e-6f);
}

TEST(Routing, TiesGoToTheLowestIndex) {
  EXPECT_EQ(Experts(Route(Params(5, 3), {1, 1, 1, 1, 1})), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(Experts(Route(Params(5, 3), {0, 1, 2, 1, 1})), (std::vector<int32_t>{2, 1, 3}));
}

TEST(Routing, OnlyTheBestGroupsAreOpen) {
  RouterParams params = Params(8, 2);
  params.groups = 4;
  params.topk_groups = 1;
  // Expert 0 is the best of all, but its group's two best add up to less than those of group 2.
  EXPECT_EQ(Experts(Route(params, {4, -4, 0, 0, 2, 3, 1, 1})), (std::vector<int32_t>{5, 4}));
  params.topk_groups = 2;
  EXPECT_EQ(Experts(Route(params, {4, -4, 0, 0, 2, 3, 1, 1})), (std::vector<int32_t>{5, 4}));
  // Groups that tie: the lower index is kept.
  params.topk_groups = 1;
  EXPECT_EQ(Experts(Route(params, {1, 1, 1, 1, 1, 1, 1, 1})), (std::vector<int32_t>{0, 1}));
}

TEST(Routing, ChoicesOfOpenGroupsBeatClosedOnesHoweverLow) {
  RouterParams params = Params(4, 2);
  params.groups = 2;
  params.topk_groups = 1;
  const auto routed = Route(params, {-1, -2, 5, 5}, {3, -0.9f, -1, -1});
  EXPECT_EQ(Experts(routed), (std::vector<int32_t>{0, 1}));
}

TEST(Routing, AnyLogitsChooseDistinctExperts) {
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, kNan, kNan, kNan}, std::vector<float>{kInf, -kInf, kNan, 0},
        std::vector<float>{-kInf, -kInf, -kInf, -kInf}}) {
    for (bool sigmoid : {true, false}) {
      for (int32_t groups : {1, 2}) {
        RouterParams params = Params(4, 2);
        params.sigmoid = sigmoid;
        params.groups = groups;
        const auto experts = Experts(Route(params, logits));
        ASSERT_NE(experts[0], experts[1]);
        for (int32_t expert : experts) ASSERT_TRUE(expert >= 0 && expert < 4);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
