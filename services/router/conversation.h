// The messages of a request: checked, rendered, and how their answer is to be read.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "request/sampling.h"
#include "services/text_model/text_model.h"
#include "sluice/v1/inference.pb.h"
#include "text/output/output_reader.h"

namespace sluice::router {

struct PreparedChat {
  services::EncodedChat prompt;
  text::OutputOptions output;  // of one choice; the seed of its ids is left to the caller
};

// Text of the client in `messages`, in bytes: bounds the work that follows.
size_t BytesOf(const v1::Messages& messages);

// Renders and encodes. Errors carry an ErrorDetail with the field: INVALID_FIELD, NOT_SUPPORTED.
absl::StatusOr<PreparedChat> PrepareChat(const v1::Messages& messages,
                                         const services::TextModel& model);

}  // namespace sluice::router
