// How fast this engine computes, measured step by step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace sluice::engine {

// Moving averages over roughly the last ten steps. Owned by one thread.
class Rates {
 public:
  // A pass took `time` for `prompt_tokens` tokens of prompts and `decodes` tokens of running
  // streams. Passes on a clock that stands still say nothing.
  void Add(uint32_t prompt_tokens, uint32_t decodes, absl::Duration time) {
    if (time <= absl::ZeroDuration()) return;
    if (prompt_tokens == 0) {
      decode_step_ = decode_step_ == absl::ZeroDuration()
                         ? time
                         : decode_step_ + kWeight * (time - decode_step_);
      return;
    }
    // What a decode step alone costs is not the prompt's fault; but a pass never costs its prompt
    // nothing.
    const absl::Duration alone = decodes > 0 ? decode_step_ : absl::ZeroDuration();
    const double seconds = absl::ToDoubleSeconds(std::max(time - alone, time / 4));
    const double rate = prompt_tokens / seconds;
    prefill_tokens_per_s_ = prefill_tokens_per_s_ <= 0
                                ? rate
                                : prefill_tokens_per_s_ + kWeight * (rate - prefill_tokens_per_s_);
  }

  // 0 before the first measurement.
  double prefill_tokens_per_s() const { return prefill_tokens_per_s_; }
  absl::Duration decode_step() const { return decode_step_; }

 private:
  static constexpr double kWeight = 0.2;
  double prefill_tokens_per_s_ = 0;
  absl::Duration decode_step_;
};

}  // namespace sluice::engine
