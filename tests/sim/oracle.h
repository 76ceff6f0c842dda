// What a request says alone and undisturbed, by numerics of the two sides. Knows nothing of the
// router's text code: the toy model's tokens are bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "engine/toy_model.h"
#include "request/sampling.h"

namespace sluice::sim {

// A client's request.
struct SimRequest {
  absl::Duration arrival;
  absl::Duration deadline = absl::Seconds(20);  // after arrival
  std::vector<request::TokenId> prompt;
  request::SamplingParams sampling;
  uint32_t choices = 1;
  std::vector<std::string> stops;
  bool include_stop = false;
  std::string tenant = "t";
  int32_t priority = 0;
  std::string salt;  // requests of one salt share cached blocks
  // After arrival: the client leaves.
  std::optional<absl::Duration> leaves;
};

// One choice, from its first token to its end.
struct Continuation {
  std::vector<request::SampledToken> tokens;
  std::string text;
  std::string finish_reason;
  std::string matched_stop;
};

class Oracle {
 public:
  Oracle(const engine::ToyModelOptions& model, const SimRequest& request);

  // `prefill` and `decode` as GenerateStart names them. Null for numerics of no known flavour.
  const Continuation* Of(Id128 prefill, Id128 decode, uint32_t choice);

 private:
  static constexpr uint32_t kFlavours = 4;
  std::vector<request::SampledToken> Sample(uint32_t prefill, uint32_t decode, uint32_t choice,
                                            request::FinishReason* finish) const;
  Continuation Read(std::vector<request::SampledToken> tokens, request::FinishReason finish) const;

  const engine::ToyModelOptions model_;
  const SimRequest& request_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Continuation> known_;
};

// The numerics that a flavour of the toy model has.
Id128 NumericsOf(engine::ToyModelOptions model, uint32_t flavour);

}  // namespace sluice::sim
