// Inverse frequencies of the rotary embedding and its scalings.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config.h"

namespace sluice::model {
namespace {

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

// YaRN: pairs that turn more than beta_fast times within the original context are kept, those that
// turn less than beta_slow times are stretched; between these two pair indices is a linear ramp.
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& rope, int32_t width) : factor_(rope.factor) {
    const auto pair_of = [&](double rotations) {
      return width * std::log(rope.original_context / (rotations * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(rope.theta));
    };
    low_ = std::max(std::floor(pair_of(rope.beta_fast)), 0.0);
    high_ = std::min(std::ceil(pair_of(rope.beta_slow)), static_cast<double>(width - 1));
    if (low_ == high_) high_ += 0.001;  // a step
  }
  double Scale(int32_t pair, double frequency) const {
    const double ramp = std::clamp((pair - low_) / (high_ - low_), 0.0, 1.0);
    return frequency * (1.0 - ramp) + frequency / factor_ * ramp;
  }

 private:
  const double factor_;
  double low_ = 0;
  double high_ = 0;
};

}  // namespace

std::vector<float> InverseFrequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const int32_t width = config.rotary_dim();
  const YarnRamp yarn(rope, width);
  std::vector<float> result(static_cast<size_t>(width / 2));
  for (int32_t i = 0; i < width / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / width);
    if (rope.scaling == RopeConfig::Scaling::kLlama3) frequency = ScaleLlama3(rope, frequency);
    if (rope.scaling == RopeConfig::Scaling::kYarn) frequency = yarn.Scale(i, frequency);
    const size_t at = static_cast<size_t>(i);
    if (!rope.divisors.empty()) frequency /= double{rope.divisors[at]};
    result[at] = static_cast<float>(frequency);
  }
  return result;
}

}  // namespace sluice::model
