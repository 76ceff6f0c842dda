#include "request/sampling.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace sluice::request {
namespace {

absl::Status CheckRange(absl::string_view field, float value, float low, float high,
                        bool low_open) {
  const bool inside =
      std::isfinite(value) && value <= high && (low_open ? value > low : value >= low);
  if (inside) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must lie in ",
                                                 low_open ? "(" : "[", low, ", ", high, "]"));
}

absl::Status CheckToken(absl::string_view field, TokenId token, TokenId vocabulary) {
  if (token >= 0 && token < vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " names token ", token, "; the vocabulary has ", vocabulary, " tokens"));
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& params, TokenId vocabulary) {
  const struct {
    absl::string_view field;
    float value, low, high;
    bool low_open;
  } ranges[] = {{"temperature", params.temperature, 0, 100, false},
                {"top_p", params.top_p, 0, 1, true},
                {"min_p", params.min_p, 0, 1, false},
                {"frequency_penalty", params.frequency_penalty, -2, 2, false},
                {"presence_penalty", params.presence_penalty, -2, 2, false},
                {"repetition_penalty", params.repetition_penalty, 0, 2, true}};
  for (const auto& range : ranges) {
    absl::Status status =
        CheckRange(range.field, range.value, range.low, range.high, range.low_open);
    if (!status.ok()) return status;
  }
  if (params.logit_bias.size() > kLogitBiasMax) {
    return absl::InvalidArgumentError(absl::StrCat("logit_bias has ", params.logit_bias.size(),
                                                   " entries; at most ", kLogitBiasMax,
                                                   " are allowed"));
  }
  for (const auto& [token, bias] : params.logit_bias) {
    absl::Status status = CheckToken("logit_bias", token, vocabulary);
    if (status.ok()) status = CheckRange("logit_bias", bias, -100, 100, false);
    if (!status.ok()) return status;
  }
  for (TokenId token : params.stop_token_ids) {
    absl::Status status = CheckToken("stop_token_ids", token, vocabulary);
    if (!status.ok()) return status;
  }
  if (params.logprobs < -1 || params.logprobs > kLogprobsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs is ", params.logprobs, "; it must lie in [0, ", kLogprobsMax, "]"));
  }
  if (params.max_tokens == 0)
    return absl::InvalidArgumentError("max_tokens is 0; it must be at least 1");
  if (params.min_tokens > params.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_tokens is ", params.min_tokens,
                                                   ", more than max_tokens ", params.max_tokens));
  }
  return absl::OkStatus();
}

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
  }
  return "";
}

}  // namespace sluice::request
