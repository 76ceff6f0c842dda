#include "model/config.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace sluice::model {
namespace {

constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxWidth = 1 << 18;  // hidden, intermediate
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxHeadDim = 1024;
constexpr int32_t kMaxVocabulary = 1 << 22;
constexpr int32_t kMaxContext = 1 << 26;

absl::Status CheckRange(absl::string_view what, int32_t value, int32_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model config: ", what, " is ", value, ", possible are 1 to ", max));
}

absl::Status CheckPositive(absl::string_view what, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model config: ", what, " is ", value, ", it must be a positive number"));
}

// Llama 3.1: wavelengths above the original context / low factor are stretched, those below
// context / high factor kept, with a linear blend in between.
double ScaleLlama3(const RopeConfig& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double low_wavelength = rope.original_context / rope.low_freq_factor;
  const double high_wavelength = rope.original_context / rope.high_freq_factor;
  if (wavelength > low_wavelength) return frequency / rope.factor;
  if (wavelength < high_wavelength) return frequency;
  const double blend = (rope.original_context / wavelength - rope.low_freq_factor) /
                       (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - blend) * frequency / rope.factor + blend * frequency;
}

}  // namespace

absl::string_view FamilyName(Family family) { return family == Family::kLlama ? "llama" : "qwen3"; }

absl::Status ValidateConfig(const ModelConfig& config) {
  SLUICE_RETURN_IF_ERROR(CheckRange("number of layers", config.layers, kMaxLayers));
  SLUICE_RETURN_IF_ERROR(CheckRange("hidden size", config.hidden, kMaxWidth));
  SLUICE_RETURN_IF_ERROR(CheckRange("intermediate size", config.intermediate, kMaxWidth));
  SLUICE_RETURN_IF_ERROR(CheckRange("number of heads", config.heads, kMaxHeads));
  SLUICE_RETURN_IF_ERROR(CheckRange("number of key-value heads", config.kv_heads, kMaxHeads));
  SLUICE_RETURN_IF_ERROR(CheckRange("head dimension", config.head_dim, kMaxHeadDim));
  SLUICE_RETURN_IF_ERROR(CheckRange("vocabulary", config.vocabulary, kMaxVocabulary));
  SLUICE_RETURN_IF_ERROR(CheckRange("context length", config.context_tokens, kMaxContext));
  SLUICE_RETURN_IF_ERROR(CheckPositive("norm epsilon", config.norm_eps));
  SLUICE_RETURN_IF_ERROR(CheckPositive("rope theta", config.rope.theta));
  if (config.heads % config.kv_heads != 0 || config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("model config: ", config.heads, " heads, ",
                                                   config.kv_heads, " key-value heads of ",
                                                   config.head_dim, " do not fit together"));
  }
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeConfig::Scaling::kLlama3) {
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope factor", rope.factor));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope low_freq_factor", rope.low_freq_factor));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope original context", rope.original_context));
    SLUICE_RETURN_IF_ERROR(CheckPositive("rope high_freq_factor minus low_freq_factor",
                                         rope.high_freq_factor - rope.low_freq_factor));
  }
  const size_t pairs = static_cast<size_t>(config.head_dim / 2);
  if (!rope.divisors.empty() && rope.divisors.size() != pairs) {
    return absl::InvalidArgumentError(absl::StrCat("model config: ", rope.divisors.size(),
                                                   " rope divisors for ", pairs, " pairs"));
  }
  for (float divisor : rope.divisors) {
    SLUICE_RETURN_IF_ERROR(CheckPositive("a rope divisor", divisor));
  }
  for (const auto* tokens : {&config.bos_tokens, &config.eos_tokens}) {
    for (int32_t token : *tokens) {
      if (token >= 0 && token < config.vocabulary) continue;
      return absl::InvalidArgumentError(absl::StrCat("model config: special token ", token,
                                                     " is outside the vocabulary of ",
                                                     config.vocabulary));
    }
  }
  return absl::OkStatus();
}

std::vector<float> InverseFrequencies(const ModelConfig& config) {
  const int32_t pairs = config.head_dim / 2;
  std::vector<float> result(static_cast<size_t>(pairs));
  for (int32_t i = 0; i < pairs; ++i) {
    double frequency = std::pow(config.rope.theta, -2.0 * i / config.head_dim);
    if (config.rope.scaling == RopeConfig::Scaling::kLlama3) {
      frequency = ScaleLlama3(config.rope, frequency);
    }
    const size_t at = static_cast<size_t>(i);
    if (!config.rope.divisors.empty()) frequency /= config.rope.divisors[at];
    result[at] = static_cast<float>(frequency);
  }
  return result;
}

Id128 ConfigDigest(const ModelConfig& config) {
  const std::string text = absl::StrCat(
      FamilyName(config.family), ";", config.layers, ";", config.hidden, ";", config.intermediate,
      ";", config.heads, ";", config.kv_heads, ";", config.head_dim, ";", config.vocabulary, ";",
      absl::Hex(std::bit_cast<uint32_t>(config.norm_eps)), ";", config.tied_embeddings, ";");
  const std::vector<float> frequencies = InverseFrequencies(config);
  const Id128 scalars = Hash128(text.data(), text.size());
  return Hash128(frequencies.data(), frequencies.size() * sizeof(float), scalars.low);
}

}  // namespace sluice::model
