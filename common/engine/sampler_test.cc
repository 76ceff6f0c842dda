#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/random.h"

namespace sluice::engine {
namespace {

using request::SampledToken;
using request::SamplingParams;
using request::TokenId;

constexpr TokenId kEos = 3;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

TokenId Draw(const SamplingParams& params, const std::vector<float>& logits, uint32_t position = 0,
             const std::vector<TokenId>& prompt = {}, const std::vector<TokenId>& output = {}) {
  Sampler sampler(params, {kEos}, prompt);
  for (TokenId token : output) sampler.AddOutput(token);
  const auto sampled = sampler.Sample(logits, position);
  EXPECT_TRUE(sampled.ok()) << sampled.status();
  return sampled.ok() ? sampled->token : -1;
}

// Every token that is drawn at some of many positions.
std::vector<TokenId> Support(const SamplingParams& params, const std::vector<float>& logits) {
  std::map<TokenId, int> seen;
  for (uint32_t position = 0; position < 4000; ++position) ++seen[Draw(params, logits, position)];
  std::vector<TokenId> tokens;
  for (const auto& [token, count] : seen) tokens.push_back(token);
  return tokens;
}

std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::vector<float> RandomLogits(uint64_t seed, size_t count, double spread) {
  SeededRandom random(seed);
  std::vector<float> logits;
  for (size_t i = 0; i < count; ++i)
    logits.push_back(static_cast<float>((random.Unit() - 0.5) * spread));
  return logits;
}

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  EXPECT_EQ(Draw(Greedy(), {1, 5, 2, 5, 5}), 1);
  EXPECT_EQ(Draw(Greedy(), {-1, -1, -1}), 0);
}

TEST(Sampler, GreedyBelowTheSmallestTemperature) {
  SamplingParams params;
  params.temperature = 9e-7f;
  for (uint32_t position = 0; position < 100; ++position)
    EXPECT_EQ(Draw(params, {1.0f, 1.1f, 1.0f}, position), 1);
}

TEST(Sampler, FrequencyPenaltyCountsOutputOnly) {
  SamplingParams params = Greedy();
  params.frequency_penalty = 0.5f;
  const std::vector<float> logits = {2.0f, 1.2f, 0.0f};
  EXPECT_EQ(Draw(params, logits, 0, {0, 0, 0}, {}), 0);
  EXPECT_EQ(Draw(params, logits, 1, {}, {0}), 0);     // 1.5 against 1.2
  EXPECT_EQ(Draw(params, logits, 2, {}, {0, 0}), 1);  // 1.0 against 1.2
}

TEST(Sampler, PresencePenaltyCountsOnce) {
  SamplingParams params = Greedy();
  params.presence_penalty = 0.7f;
  EXPECT_EQ(Draw(params, {2.0f, 1.2f}, 3, {}, {0, 0, 0}), 0);  // 1.3 against 1.2
  params.presence_penalty = 0.9f;
  EXPECT_EQ(Draw(params, {2.0f, 1.2f}, 1, {}, {0}), 1);
}

TEST(Sampler, RepetitionPenaltyCoversPromptAndOutputOnce) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0f;
  EXPECT_EQ(Draw(params, {3.0f, 1.6f}, 0, {0}, {}), 1);    // 1.5
  EXPECT_EQ(Draw(params, {3.0f, 1.4f}, 1, {0}, {0}), 0);   // halved once, not twice
  EXPECT_EQ(Draw(params, {-1.0f, -1.5f}, 0, {0}, {}), 1);  // negative: doubled
}

TEST(Sampler, AdditivePenaltiesComeBeforeTheRepetitionPenalty) {
  SamplingParams params = Greedy();
  params.frequency_penalty = 1.0f;
  params.repetition_penalty = 2.0f;
  // (3 - 1) / 2 = 1; the other order would give 0.5.
  EXPECT_EQ(Draw(params, {3.0f, 0.8f}, 1, {}, {0}), 0);
  EXPECT_EQ(Draw(params, {3.0f, 1.1f}, 1, {}, {0}), 1);
}

TEST(Sampler, BiasIsAddedAfterPenalties) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0f;
  params.logit_bias = {{0, 1.0f}, {2, -100.0f}};
  EXPECT_EQ(Draw(params, {2.0f, 1.9f, 50.0f}, 0, {0}), 0);  // 2 / 2 + 1; (2 + 1) / 2 would lose
}

TEST(Sampler, MinTokensMasksEosAndStopIds) {
  SamplingParams params = Greedy();
  params.min_tokens = 2;
  params.stop_token_ids = {1};
  params.logit_bias = {{kEos, 100.0f}};
  const std::vector<float> logits = {1, 8, 2, 9};
  EXPECT_EQ(Draw(params, logits, 0), 2);
  EXPECT_EQ(Draw(params, logits, 1), 2);
  EXPECT_EQ(Draw(params, logits, 2), kEos);
}

TEST(Sampler, NanIsNeverDrawn) {
  EXPECT_EQ(Draw(Greedy(), {kNan, 1, kNan}), 1);
  SamplingParams params;
  EXPECT_EQ(Support(params, {kNan, 1, kNan, 1}), (std::vector<TokenId>{1, 3}));
  params.top_p = 0.9f;
  EXPECT_EQ(Support(params, {kNan, 1, kNan, 1}), (std::vector<TokenId>{1, 3}));
  EXPECT_EQ(Draw(params, {0, kInfinity, 1}), 1);
}

TEST(Sampler, NoFiniteLogitIsAnError) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    Sampler sampler(params, {kEos}, {});
    const auto sampled = sampler.Sample({kNan, -kInfinity, kNan}, 5);
    EXPECT_EQ(sampled.status().code(), absl::StatusCode::kInternal);
  }
}

TEST(Sampler, EndsAtEosAndStopIdsUnlessIgnored) {
  SamplingParams params;
  params.stop_token_ids = {7};
  const Sampler ends(params, {kEos}, {});
  EXPECT_TRUE(ends.EndsSequence(kEos));
  EXPECT_TRUE(ends.EndsSequence(7));
  EXPECT_FALSE(ends.EndsSequence(6));
  params.ignore_eos = true;
  const Sampler ignores(params, {kEos}, {});
  EXPECT_FALSE(ignores.EndsSequence(kEos));
  EXPECT_FALSE(ignores.EndsSequence(7));
}

TEST(Sampler, TopKKeepsTheLowerIdOnTies) {
  SamplingParams params;
  params.top_k = 2;
  EXPECT_EQ(Support(params, {1, 2, 2, 2}), (std::vector<TokenId>{1, 2}));
}

TEST(Sampler, TopPKeepsTheCrossingToken) {
  const std::vector<float> logits = LogitsOf({0.1, 0.5, 0.25, 0.15});
  SamplingParams params;
  params.top_p = 0.45f;
  EXPECT_EQ(Support(params, logits), (std::vector<TokenId>{1}));
  params.top_p = 0.6f;
  EXPECT_EQ(Support(params, logits), (std::vector<TokenId>{1, 2}));
  params.top_p = 0.8f;
  EXPECT_EQ(Support(params, logits), (std::vector<TokenId>{1, 2, 3}));
  params.top_p = 0.5f;  // exactly met by the first: the next is kept
  EXPECT_EQ(Support(params, {0, 0}), (std::vector<TokenId>{0, 1}));
}

// After renormalising over the two of top_k, 0.6 would keep only the first.
TEST(Sampler, TopKAndTopPBothLookAtTheOriginalDistribution) {
  const std::vector<float> logits = LogitsOf({0.5, 0.25, 0.15, 0.1});
  SamplingParams params;
  params.top_k = 2;
  params.top_p = 0.6f;
  EXPECT_EQ(Support(params, logits), (std::vector<TokenId>{0, 1}));
  params.top_k = 3;
  EXPECT_EQ(Support(params, logits), (std::vector<TokenId>{0, 1}));
}

TEST(Sampler, MinPIsRelativeToTheLargestAfterTemperature) {
  const std::vector<float> logits = LogitsOf({0.6, 0.3, 0.1});
  SamplingParams params;
  params.min_p = 0.4f;
  EXPECT_EQ(Support(params, logits), (std::vector<TokenId>{0, 1}));
  params.temperature = 4.0f;  // ratios 0.84 and 0.64
  EXPECT_EQ(Support(params, logits), (std::vector<TokenId>{0, 1, 2}));
}

double ChiSquare(const std::map<TokenId, int>& seen, const std::vector<double>& expected,
                 int draws) {
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto found = seen.find(static_cast<TokenId>(i));
    const double count = found == seen.end() ? 0 : found->second;
    if (expected[i] == 0) {
      EXPECT_EQ(count, 0) << "token " << i;
      continue;
    }
    const double want = expected[i] * draws;
    sum += (count - want) * (count - want) / want;
  }
  return sum;
}

// Fixed seeds, so this either always passes or never; 24.3 is the 0.1 % point at 7 degrees of
// freedom.
TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<double> p = {0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.04, 0.01};
  constexpr int kDraws = 40000;
  const struct {
    float temperature;
    uint32_t top_k;
    float top_p;
    std::vector<double> expected;
  } cases[] = {{1.0f, 0, 1.0f, p},
               {1.0f, 3, 1.0f, {0.3 / 0.65, 0.2 / 0.65, 0.15 / 0.65, 0, 0, 0, 0, 0}},
               {1.0f, 0, 0.6f, {0.3 / 0.65, 0.2 / 0.65, 0.15 / 0.65, 0, 0, 0, 0, 0}},
               {0.5f, 0, 1.0f, {}}};
  for (const auto& c : cases) {
    SamplingParams params;
    params.temperature = c.temperature;
    params.top_k = c.top_k;
    params.top_p = c.top_p;
    std::vector<double> expected = c.expected;
    if (expected.empty()) {
      double total = 0;
      for (double x : p) total += x * x;
      for (double x : p) expected.push_back(x * x / total);
    }
    for (uint64_t seed : {1u, 2u, 3u}) {
      params.seed = seed;
      std::map<TokenId, int> seen;
      Sampler sampler(params, {kEos}, {});
      const std::vector<float> logits = LogitsOf(p);
      for (uint32_t i = 0; i < kDraws; ++i) ++seen[sampler.Sample(logits, i)->token];
      EXPECT_LT(ChiSquare(seen, expected, kDraws), 24.3)
          << "temperature " << c.temperature << " seed " << seed;
    }
  }
}

// The short cuts (bounds on the noise, partial sorts) against the definition.
TEST(Sampler, EqualsTheDefinitionOnLargeVocabularies) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const size_t vocabulary = 500 + seed * 97;
    const std::vector<float> logits = RandomLogits(seed, vocabulary, seed % 3 == 0 ? 0.2 : 12.0);
    SamplingParams params;
    params.seed = seed;
    params.choice = static_cast<uint32_t>(seed % 4);
    params.temperature = seed % 2 == 0 ? 1.0f : 0.6f;
    if (seed % 4 >= 1) params.top_p = 0.9f;
    if (seed % 4 >= 2) params.top_k = 700;
    if (seed % 4 >= 3) params.min_p = 0.01f;
    std::vector<TokenId> order(vocabulary);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const auto weight = [&](TokenId t) {
      return std::exp((static_cast<double>(logits[static_cast<size_t>(t)]) -
                       static_cast<double>(logits[static_cast<size_t>(order[0])])) /
                      static_cast<double>(params.temperature));
    };
    double total = 0;
    for (TokenId t : order) total += weight(t);
    TokenId winner = -1;
    double best = -1e300;
    double mass = 0;
    for (size_t i = 0; i < vocabulary; ++i) {
      const TokenId t = order[i];
      const bool kept = (params.top_k == 0 || i < params.top_k) &&
                        mass <= static_cast<double>(params.top_p) * total &&
                        weight(t) >= static_cast<double>(params.min_p);
      mass += weight(t);
      if (!kept) continue;
      const double u =
          CounterNoise(params.seed, params.choice, 11).Uniform(static_cast<uint64_t>(t));
      const double noisy = std::log(weight(t)) - std::log(-std::log(u));
      if (noisy > best) {
        best = noisy;
        winner = t;
      }
    }
    EXPECT_EQ(Draw(params, logits, 11), winner) << "seed " << seed;
  }
}

TEST(Sampler, AMovedStreamDrawsTheSameTokens) {
  SamplingParams params;
  params.seed = 99;
  params.frequency_penalty = 0.4f;
  params.repetition_penalty = 1.2f;
  params.top_p = 0.9f;
  const std::vector<TokenId> prompt = {1, 2, 3};
  Sampler whole(params, {kEos}, prompt);
  std::vector<TokenId> output;
  for (uint32_t i = 0; i < 64; ++i) {
    const TokenId token = whole.Sample(RandomLogits(i, 300, 6), i)->token;
    Sampler moved(params, {kEos}, prompt);
    for (TokenId t : output) moved.AddOutput(t);
    EXPECT_EQ(moved.Sample(RandomLogits(i, 300, 6), i)->token, token) << "position " << i;
    whole.AddOutput(token);
    output.push_back(token);
  }
}

TEST(Sampler, ChoicesAndSeedsDrawDifferently) {
  SamplingParams params;
  std::vector<std::vector<TokenId>> streams;
  for (const auto& [seed, choice] : {std::pair<uint64_t, uint32_t>{1, 0}, {1, 1}, {2, 0}}) {
    params.seed = seed;
    params.choice = choice;
    std::vector<TokenId> stream;
    for (uint32_t i = 0; i < 32; ++i) stream.push_back(Draw(params, RandomLogits(5, 100, 2), i));
    streams.push_back(stream);
  }
  EXPECT_NE(streams[0], streams[1]);
  EXPECT_NE(streams[0], streams[2]);
  EXPECT_NE(streams[1], streams[2]);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  SamplingParams params = Greedy();
  params.logprobs = 2;
  params.logit_bias = {{2, 100.0f}};
  Sampler sampler(params, {kEos}, {});
  const auto sampled = sampler.Sample(LogitsOf({0.2, 0.5, 0.05, 0.2, 0.05}), 0);
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->token, 2);
  EXPECT_NEAR(sampled->logprob, std::log(0.05), 1e-6);
  ASSERT_EQ(sampled->top.size(), 2u);
  EXPECT_EQ(sampled->top[0].token, 1);
  EXPECT_NEAR(sampled->top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(sampled->top[1].token, 0);  // ties: the lower id
}

TEST(Sampler, LogprobsOnlyWhenAsked) {
  SamplingParams params = Greedy();
  Sampler none(params, {kEos}, {});
  EXPECT_EQ(none.Sample({1, 2}, 0)->logprob, 0.0f);
  params.logprobs = 0;
  Sampler chosen(params, {kEos}, {});
  const auto sampled = chosen.Sample({1, 2}, 0);
  EXPECT_LT(sampled->logprob, 0.0f);
  EXPECT_TRUE(sampled->top.empty());
}

TEST(Sampler, TheHashOfTheLogitsOnlyWhenAskedAndBeforePenalties) {
  SamplingParams params = Greedy();
  Sampler silent(params, {kEos}, {});
  EXPECT_EQ(silent.Sample({1, 2, 3}, 0)->logits_hash, 0u);
  params.logits_hash = true;
  Sampler plain(params, {kEos}, {});
  params.logprobs = 1;
  params.logit_bias = {{0, 5.0f}};
  Sampler biased(params, {kEos}, {});
  const uint64_t hash = plain.Sample({1, 2, 3}, 0)->logits_hash;
  EXPECT_NE(hash, 0u);
  EXPECT_EQ(biased.Sample({1, 2, 3}, 0)->logits_hash, hash);
  EXPECT_NE(plain.Sample({1, 2, std::nextafter(3.0f, 4.0f)}, 0)->logits_hash, hash);
}

TEST(Sampler, TopLogprobsOfARandomRow) {
  const std::vector<float> logits = RandomLogits(8, 5000, 20);
  const SampledToken sampled = WithLogprobs(logits, 17, 20);
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(sampled.logprob, static_cast<double>(logits[17]) - std::log(total), 1e-5);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  ASSERT_EQ(sampled.top.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(logits[static_cast<size_t>(sampled.top[i].token)], sorted[i]);
    EXPECT_NEAR(sampled.top[i].logprob, static_cast<double>(sorted[i]) - std::log(total), 1e-5);
  }
}

}  // namespace
}  // namespace sluice::engine
