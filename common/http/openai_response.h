// Messages of inference.proto to bodies and chunks of the OpenAI API. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "http/json_writer.h"
#include "http/openai_request.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::http {

// What all chunks of an answer repeat.
struct ReplyInfo {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;         // "chatcmpl-..." or "cmpl-..."
  int64_t created_s = 0;  // since 1970
  std::string model;
  std::string fingerprint;    // empty: null
  bool logprobs = false;      // were asked for
  bool usage_member = false;  // chunks carry "usage": null
};

// "fp_..." of the numerics that computed an answer: equal seeds give equal answers while it stays
// the same.
std::string Fingerprint(const v1::GenerateStart& start);

// Collects log-probabilities in the form of one endpoint.
class LogprobsText {
 public:
  // `text_offset`: characters of the choice's tokens before.
  explicit LogprobsText(Endpoint endpoint, size_t text_offset = 0)
      : endpoint_(endpoint), text_offset_(text_offset) {}
  void Append(const v1::TokenLogprobs& entry);
  size_t text_offset() const { return text_offset_; }
  size_t bytes() const {
    return content_.size() + tokens_.size() + values_.size() + tops_.size() + offsets_.size();
  }
  // The value of the "logprobs" member.
  void Write(JsonWriter* json) const;

 private:
  Endpoint endpoint_;
  size_t text_offset_;
  std::string content_;                           // chat: entries
  std::string tokens_, values_, tops_, offsets_;  // completions: four lists
};

// One continuation: gathered for a whole answer, or what is remembered between chunks of a stream.
struct ReplyChoice {
  explicit ReplyChoice(Endpoint endpoint) : logprobs(endpoint) {}
  std::string text;
  std::string reasoning;
  std::vector<v1::ToolCallDelta> tool_calls;  // whole ones
  LogprobsText logprobs;
  std::string finish_reason;  // empty while it runs
  uint32_t tokens = 0;
  size_t text_offset = 0;  // streams: for the next chunk's log-probabilities

  size_t bytes() const;  // gathered
};

// Adds a delta to a whole answer.
void Gather(const v1::ChoiceDelta& delta, ReplyChoice* choice);

// A chunk with one delta of choice `index`. `choice` is what was sent before and is brought up to
// date. `usage`, if not null, are the running counts.
std::string StreamChunk(const ReplyInfo& info, uint32_t index, const v1::ChoiceDelta& delta,
                        ReplyChoice* choice, const v1::Usage* usage);
// The chunk without choices that ends a stream with include_usage.
std::string UsageChunk(const ReplyInfo& info, const v1::Usage& usage);
// The body of an answer that is not streamed.
std::string WholeReply(const ReplyInfo& info, absl::Span<const ReplyChoice> choices,
                       const v1::Usage& usage);

// GET /v1/models and /v1/models/ID.
std::string ModelList(const v1::ListModelsResponse& models);
std::string OneModel(const v1::Model& model);
// `context_tokens` 0: null.
std::string TokenizeReply(const v1::TokenizeResponse& response, uint32_t context_tokens);
std::string DetokenizeReply(const v1::DetokenizeResponse& response);

}  // namespace sluice::http
