// What a client has of one generation, and the request that goes on from there after its stream
// broke. No network.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::cli {

// What a message of a stream adds to an answer.
struct NewText {
  std::string text;
  std::string reasoning;  // kept apart by models that reason
  uint32_t tokens = 0;    // of the whole answer, up to the end of this

  bool empty() const { return text.empty() && reasoning.empty(); }
};

// One choice. Thread-compatible.
class StreamProgress {
 public:
  // `request` must have a request id and at most one choice.
  explicit StreamProgress(v1::GenerateRequest request);

  // The request as given, or, once the start arrived, with the point to resume at: the router
  // computes again what the client has and sends only what follows, the same bytes.
  v1::GenerateRequest NextRequest() const;

  // Takes the next message of a stream; returns the text that the client does not have yet.
  // Errors: DATA_LOSS when tokens are missing or overlap, ABORTED when a resumed stream is another
  // one (seed or numerics differ).
  absl::StatusOr<NewText> Accept(const v1::GenerateResponse& response);

  bool started() const { return started_; }
  uint32_t tokens() const { return tokens_; }
  const v1::GenerateStart& start() const { return start_; }
  const std::string& finish_reason() const { return finish_reason_; }
  const v1::Usage& usage() const { return usage_; }

 private:
  absl::Status AcceptStart(const v1::GenerateStart& start);

  const v1::GenerateRequest request_;
  v1::GenerateStart start_;
  bool started_ = false;
  uint32_t tokens_ = 0;
  std::string finish_reason_;
  v1::Usage usage_;
};

}  // namespace sluice::cli
