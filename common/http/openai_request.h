// Bodies of the OpenAI API to the messages of inference.proto. Pure functions on untrusted text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::http {

enum class Endpoint { kChat, kCompletions };

// What /v1/chat/completions or /v1/completions asks for.
struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kChat;
  // One per prompt, alike but for their input; request_id and deadline are left to the caller.
  std::vector<v1::GenerateRequest> generations;
  uint32_t choices = 1;  // per prompt
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // and running counts in every chunk
  // Members that mean nothing here.
  std::vector<std::string> ignored;
};

// Null members count as left out. Errors: INVALID_FIELD naming the member, for wrong types, values
// out of range, and members that would change the answer but are not supported. Cost: linear in the
// body.
absl::StatusOr<OpenAiRequest> ParseGeneration(Endpoint endpoint, absl::string_view body);

// {"model","prompt"|"messages","add_generation_prompt","parse_special"} and {"model","tokens"}.
absl::StatusOr<v1::TokenizeRequest> ParseTokenize(absl::string_view body);
absl::StatusOr<v1::DetokenizeRequest> ParseDetokenize(absl::string_view body);

}  // namespace sluice::http
