#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"

namespace sluice::engine {
namespace {

using request::SampledToken;
using request::TokenId;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kFirstSelection = 256;
constexpr double kLn2 = 0.6931471805599453;
constexpr double kRoundingSlack = 1e-9;

// What sampling sees of a logit: NaN is never drawn, infinity does not drown the arithmetic.
float Guarded(float logit) {
  if (std::isnan(logit)) return kMinusInfinity;
  return std::min(logit, std::numeric_limits<float>::max());
}

// The largest logit; NaN is less than any. Lanes, so that it runs at the rate of the cache.
float Largest(absl::Span<const float> row) {
  typedef float Lanes __attribute__((vector_size(64)));
  constexpr size_t kLanes = sizeof(Lanes) / sizeof(float);
  Lanes lanes = kMinusInfinity - Lanes{};
  size_t at = 0;
  for (; at + kLanes <= row.size(); at += kLanes) {
    Lanes next;
    std::memcpy(&next, row.data() + at, sizeof(next));
    lanes = next > lanes ? next : lanes;
  }
  float largest = kMinusInfinity;
  for (size_t i = 0; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  for (; at < row.size(); ++at) largest = row[at] > largest ? row[at] : largest;
  return largest;
}

// The largest finite logit, the lowest id on ties; -1 when there is none.
TokenId ArgMax(absl::Span<const float> row) {
  const float largest = Guarded(Largest(row));
  if (largest == kMinusInfinity) return -1;
  // Infinity counts as the largest finite value.
  const auto found =
      std::find_if(row.begin(), row.end(), [&](float logit) { return logit >= largest; });
  return static_cast<TokenId>(found - row.begin());
}

double Gumbel(double uniform) { return -std::log(-std::log(uniform)); }

}  // namespace

Sampler::Sampler(const request::SamplingParams& params, absl::Span<const TokenId> eos_tokens,
                 absl::Span<const TokenId> prompt)
    : params_(params) {
  if (!params_.ignore_eos) {
    ending_.assign(eos_tokens.begin(), eos_tokens.end());
    ending_.insert(ending_.end(), params_.stop_token_ids.begin(), params_.stop_token_ids.end());
    std::sort(ending_.begin(), ending_.end());
  }
  if (params_.repetition_penalty != 1.0f) {
    prompt_tokens_.assign(prompt.begin(), prompt.end());
    std::sort(prompt_tokens_.begin(), prompt_tokens_.end());
    prompt_tokens_.erase(std::unique(prompt_tokens_.begin(), prompt_tokens_.end()),
                         prompt_tokens_.end());
  }
}

void Sampler::AddOutput(TokenId token) { ++output_counts_[token]; }

bool Sampler::EndsSequence(TokenId token) const {
  return std::binary_search(ending_.begin(), ending_.end(), token);
}

bool Sampler::Adjusts(uint32_t position) const {
  return params_.frequency_penalty != 0.0f || params_.presence_penalty != 0.0f ||
         params_.repetition_penalty != 1.0f || !params_.logit_bias.empty() ||
         (position < params_.min_tokens && !ending_.empty());
}

void Sampler::Adjust(absl::Span<float> row, uint32_t position) const {
  for (const auto& [token, count] : output_counts_) {
    row[static_cast<size_t>(token)] -=
        params_.frequency_penalty * static_cast<float>(count) + params_.presence_penalty;
  }
  if (params_.repetition_penalty != 1.0f) {
    const auto repeat = [&](TokenId token) {
      float& logit = row[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    };
    for (const auto& [token, count] : output_counts_) repeat(token);
    for (TokenId token : prompt_tokens_) {
      if (!output_counts_.contains(token)) repeat(token);
    }
  }
  for (const auto& [token, bias] : params_.logit_bias) row[static_cast<size_t>(token)] += bias;
  if (position < params_.min_tokens) {
    for (TokenId token : ending_) row[static_cast<size_t>(token)] = kMinusInfinity;
  }
}

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<const float> logits, uint32_t position) {
  absl::Span<const float> row = logits;
  if (Adjusts(position)) {
    row_.assign(logits.begin(), logits.end());
    Adjust(absl::MakeSpan(row_), position);
    row = row_;
  }
  const TokenId best = ArgMax(row);
  if (best < 0) {
    return absl::InternalError(absl::StrCat("none of the ", logits.size(),
                                            " logits of output token ", position, " is finite"));
  }
  TokenId token = best;
  if (!params_.greedy()) {
    const bool truncated = params_.top_k > 0 || params_.top_p < 1.0f || params_.min_p > 0.0f;
    token = truncated ? DrawFromTop(row, best, position) : DrawFromAll(row, best, position);
  }
  SampledToken sampled;
  sampled.token = token;
  if (params_.logprobs >= 0) sampled = WithLogprobs(logits, token, params_.logprobs);
  if (params_.logits_hash)
    sampled.logits_hash = Hash64(logits.data(), logits.size() * sizeof(float));
  return sampled;
}

// Gumbel noise of a uniform u is at most -log(1 - u), and that is at most -ln 2 times the binary
// exponent of 1 - u: almost every token is ruled out without a logarithm.
TokenId Sampler::DrawFromAll(absl::Span<const float> row, TokenId best, uint32_t position) const {
  const double inverse = 1.0 / static_cast<double>(params_.temperature);
  const double top = static_cast<double>(Guarded(row[static_cast<size_t>(best)]));
  const CounterNoise noise(params_.seed, params_.choice, position);
  TokenId winner = best;
  double winner_score = Gumbel(noise.Uniform(static_cast<uint64_t>(best)));
  for (size_t i = 0; i < row.size(); ++i) {
    const float logit = Guarded(row[i]);
    if (logit == kMinusInfinity) continue;
    const double score = (static_cast<double>(logit) - top) * inverse;
    const double uniform = noise.Uniform(i);
    const int exponent = static_cast<int>(std::bit_cast<uint64_t>(1.0 - uniform) >> 52) - 1023;
    if (score - kLn2 * exponent + kRoundingSlack < winner_score) continue;
    const double noisy = score + Gumbel(uniform);
    if (noisy > winner_score || (noisy == winner_score && static_cast<TokenId>(i) < winner)) {
      winner_score = noisy;
      winner = static_cast<TokenId>(i);
    }
  }
  return winner;
}

TokenId Sampler::DrawFromTop(absl::Span<const float> row, TokenId best, uint32_t position) {
  const double inverse = 1.0 / static_cast<double>(params_.temperature);
  const double top = static_cast<double>(Guarded(row[static_cast<size_t>(best)]));
  const double floor = params_.min_p > 0.0f ? std::log(static_cast<double>(params_.min_p)) : -1e30;
  candidates_.clear();
  double total = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const float logit = Guarded(row[i]);
    if (logit == kMinusInfinity) continue;
    const auto score = static_cast<float>((static_cast<double>(logit) - top) * inverse);
    if (params_.top_p < 1.0f) total += static_cast<double>(std::exp(score));
    if (static_cast<double>(score) >= floor)
      candidates_.push_back({static_cast<TokenId>(i), score});
  }
  const size_t kept = KeepTop(total);
  const CounterNoise noise(params_.seed, params_.choice, position);
  TokenId winner = best;
  double winner_score = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < kept; ++i) {
    const Candidate& candidate = candidates_[i];
    const double noisy = static_cast<double>(candidate.score) +
                         Gumbel(noise.Uniform(static_cast<uint64_t>(candidate.token)));
    if (noisy > winner_score || (noisy == winner_score && candidate.token < winner)) {
      winner_score = noisy;
      winner = candidate.token;
    }
  }
  return winner;
}

// Moves the candidates that top_k and top_p keep to the front and returns their number, at least 1.
// Sorts no more of them than it has to: 256, then four times as many, and so on.
size_t Sampler::KeepTop(double total) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  };
  const auto at = [&](size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
  size_t count = candidates_.size();
  if (params_.top_k > 0 && params_.top_k < count) {
    count = params_.top_k;
    std::nth_element(candidates_.begin(), at(count), candidates_.end(), before);
  }
  if (params_.top_p >= 1.0f) return count;
  const double limit = static_cast<double>(params_.top_p) * total;
  double mass = 0;
  size_t sorted = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i == sorted) {
      sorted = std::min(count, std::max(kFirstSelection, 4 * sorted));
      std::partial_sort(at(i), at(sorted), at(count), before);
    }
    if (mass > limit) return i;
    mass += static_cast<double>(std::exp(candidates_[i].score));
  }
  return count;
}

SampledToken WithLogprobs(absl::Span<const float> logits, TokenId token, int top) {
  SampledToken sampled;
  sampled.token = token;
  const TokenId best = ArgMax(logits);
  if (best < 0) {
    sampled.logprob = kMinusInfinity;
    return sampled;
  }
  const double largest = static_cast<double>(Guarded(logits[static_cast<size_t>(best)]));
  const auto before = [](const request::TokenLogprob& a, const request::TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = Guarded(logits[i]);
    total +=
        static_cast<double>(std::exp(static_cast<float>(static_cast<double>(logit) - largest)));
    const request::TokenLogprob entry{static_cast<TokenId>(i), logit};
    const bool full = sampled.top.size() >= static_cast<size_t>(std::max(top, 0));
    if (full && (sampled.top.empty() || !before(entry, sampled.top.back()))) continue;
    if (full) sampled.top.pop_back();
    sampled.top.insert(std::upper_bound(sampled.top.begin(), sampled.top.end(), entry, before),
                       entry);
  }
  const double log_total = std::log(total);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - largest - log_total);
  };
  sampled.logprob = logprob(Guarded(logits[static_cast<size_t>(token)]));
  for (request::TokenLogprob& entry : sampled.top) entry.logprob = logprob(entry.logprob);
  return sampled;
}

}  // namespace sluice::engine
