// One chat or completion request on its way: the generations behind it and the answer in front.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "http/http_server.h"
#include "http/openai_request.h"
#include "http/openai_response.h"
#include "rpc/inference_backend.h"

namespace sluice::http {

struct OpenAiCallOptions {
  std::string request_id;
  absl::Time arrived;
  size_t reply_bytes_max = 0;
  absl::Duration ping_interval;
  HttpHeaders headers;  // of the answer, on success
};

// Thread-safe. Owned by the sinks it hands to the backend; lives as long as one of them.
class OpenAiCall : public std::enable_shared_from_this<OpenAiCall> {
 public:
  // Starts one generation per prompt. The client's leaving cancels them all, and so does the
  // failure of one.
  static void Start(OpenAiRequest request, const rpc::Caller& caller, OpenAiCallOptions options,
                    std::shared_ptr<HttpResponder> responder, rpc::InferenceBackend& backend,
                    Clock& clock);

  // For the sink of prompt `prompt`.
  bool OnMessage(size_t prompt, const v1::GenerateResponse& message);
  void OnEnd(const absl::Status& status);
  // Of a streamed answer.
  size_t backlog_bytes() const { return stream_ ? responder_->backlog_bytes() : 0; }

 private:
  OpenAiCall(const OpenAiRequest& request, OpenAiCallOptions options,
             std::shared_ptr<HttpResponder> responder, Clock& clock);

  void Watch();
  void Run(std::vector<v1::GenerateRequest> generations, const rpc::Caller& caller,
           rpc::InferenceBackend& backend);
  void CancelAll();
  void OnSilence();

  bool Stream(uint32_t index, const v1::ChoiceDelta& delta) SLUICE_REQUIRES(mutex_);
  bool Gather(uint32_t index, const v1::ChoiceDelta& delta) SLUICE_REQUIRES(mutex_);
  void Finish() SLUICE_REQUIRES(mutex_);
  void Fail(const absl::Status& status) SLUICE_REQUIRES(mutex_);
  bool SendEvent(absl::string_view data) SLUICE_REQUIRES(mutex_);
  void BeginStream() SLUICE_REQUIRES(mutex_);
  HttpHeaders Headers() const SLUICE_REQUIRES(mutex_);

  const Endpoint endpoint_;
  const bool stream_;
  const bool include_usage_;
  const bool continuous_usage_;
  const uint32_t choices_per_prompt_;
  const OpenAiCallOptions options_;
  const std::shared_ptr<HttpResponder> responder_;
  Clock& clock_;

  Mutex mutex_;
  ReplyInfo info_ SLUICE_GUARDED_BY(mutex_);
  HttpHeaders rate_headers_ SLUICE_GUARDED_BY(mutex_);  // of the prompt that started last
  std::vector<ReplyChoice> choices_
      SLUICE_GUARDED_BY(mutex_);                 // of all prompts, one after the other
  v1::Usage usage_ SLUICE_GUARDED_BY(mutex_);    // as the backend reported it
  v1::Usage running_ SLUICE_GUARDED_BY(mutex_);  // as counted so far
  size_t gathered_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  size_t unfinished_ SLUICE_GUARDED_BY(mutex_);
  bool begun_ SLUICE_GUARDED_BY(mutex_) = false;
  bool ended_ SLUICE_GUARDED_BY(mutex_) = false;
  bool cancelled_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> cancels_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::http
