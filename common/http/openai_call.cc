#include "http/openai_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "http/openai_error.h"
#include "rpc/error.h"

namespace sluice::http {
namespace {

class Sink final : public rpc::GenerationSink {
 public:
  Sink(std::shared_ptr<OpenAiCall> call, size_t prompt) : call_(std::move(call)), prompt_(prompt) {}
  bool OnMessage(v1::GenerateResponse message) override {
    return call_->OnMessage(prompt_, message);
  }
  size_t backlog_bytes() const override { return call_->backlog_bytes(); }
  void OnEnd(const absl::Status& status) override { call_->OnEnd(status); }

 private:
  const std::shared_ptr<OpenAiCall> call_;
  const size_t prompt_;
};

void Add(const v1::Usage& usage, v1::Usage* total) {
  total->set_prompt_tokens(total->prompt_tokens() + usage.prompt_tokens());
  total->set_completion_tokens(total->completion_tokens() + usage.completion_tokens());
  total->set_cached_tokens(total->cached_tokens() + usage.cached_tokens());
}

}  // namespace

void OpenAiCall::Start(OpenAiRequest request, const rpc::Caller& caller, OpenAiCallOptions options,
                       std::shared_ptr<HttpResponder> responder, rpc::InferenceBackend& backend,
                       Clock& clock) {
  const std::shared_ptr<OpenAiCall> call(
      new OpenAiCall(request, std::move(options), std::move(responder), clock));
  call->Watch();
  call->Run(std::move(request.generations), caller, backend);
}

OpenAiCall::OpenAiCall(const OpenAiRequest& request, OpenAiCallOptions options,
                       std::shared_ptr<HttpResponder> responder, Clock& clock)
    : endpoint_(request.endpoint),
      stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      choices_per_prompt_(request.choices),
      options_(std::move(options)),
      responder_(std::move(responder)),
      clock_(clock),
      choices_(request.generations.size() * request.choices, ReplyChoice(request.endpoint)),
      unfinished_(request.generations.size()) {
  info_.endpoint = endpoint_;
  info_.id =
      absl::StrCat(endpoint_ == Endpoint::kChat ? "chatcmpl-" : "cmpl-", options_.request_id);
  info_.created_s = absl::ToUnixSeconds(clock.WallNow());
  info_.model = request.generations[0].model();
  info_.logprobs = request.generations[0].has_logprobs();
  info_.usage_member = include_usage_;
}

void OpenAiCall::Watch() {
  responder_->OnGone([weak = weak_from_this()] {
    if (const auto call = weak.lock()) call->CancelAll();
  });
  if (!stream_) return;
  responder_->OnIdle(options_.ping_interval, [weak = weak_from_this()] {
    if (const auto call = weak.lock()) call->OnSilence();
  });
}

void OpenAiCall::Run(std::vector<v1::GenerateRequest> generations, const rpc::Caller& caller,
                     rpc::InferenceBackend& backend) {
  const auto keep_alive = shared_from_this();
  for (size_t i = 0; i < generations.size(); ++i) {
    generations[i].set_request_id(
        generations.size() == 1 ? options_.request_id : absl::StrCat(options_.request_id, "-", i));
    std::function<void()> cancel =
        backend.Generate(std::move(generations[i]), caller, std::make_unique<Sink>(keep_alive, i));
    {
      MutexLock lock(mutex_);
      if (!cancelled_) {
        cancels_.push_back(std::move(cancel));
        continue;
      }
    }
    return cancel();  // the client left, or another prompt failed, meanwhile
  }
}

void OpenAiCall::CancelAll() {
  std::vector<std::function<void()>> cancels;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    cancels.swap(cancels_);
  }
  for (const auto& cancel : cancels) cancel();
}

void OpenAiCall::OnSilence() {
  MutexLock lock(mutex_);
  if (ended_) return;
  BeginStream();
  responder_->Write(": ping\n\n");
}

bool OpenAiCall::OnMessage(size_t prompt, const v1::GenerateResponse& message) {
  MutexLock lock(mutex_);
  if (ended_) return false;
  if (message.has_start()) {
    info_.model = message.start().model();
    if (message.start().has_rate_limits())
      rate_headers_ = RateHeaders(message.start().rate_limits());
    if (info_.fingerprint.empty()) info_.fingerprint = Fingerprint(message.start());
    running_.set_prompt_tokens(running_.prompt_tokens() + message.start().prompt_tokens());
  }
  for (const v1::ChoiceDelta& delta : message.deltas()) {
    if (delta.index() >= choices_per_prompt_) continue;  // not asked for
    running_.set_completion_tokens(running_.completion_tokens() +
                                   static_cast<uint32_t>(delta.token_ids_size()));
    const auto index = static_cast<uint32_t>(prompt * choices_per_prompt_ + delta.index());
    if (!(stream_ ? Stream(index, delta) : Gather(index, delta))) return false;
  }
  if (message.has_usage()) Add(message.usage(), &usage_);
  return true;
}

bool OpenAiCall::Stream(uint32_t index, const v1::ChoiceDelta& delta) {
  return SendEvent(
      StreamChunk(info_, index, delta, &choices_[index], continuous_usage_ ? &running_ : nullptr));
}

bool OpenAiCall::Gather(uint32_t index, const v1::ChoiceDelta& delta) {
  ReplyChoice& choice = choices_[index];
  gathered_bytes_ -= choice.bytes();
  http::Gather(delta, &choice);
  gathered_bytes_ += choice.bytes();
  if (gathered_bytes_ <= options_.reply_bytes_max) return true;
  Fail(rpc::MakeError(
      v1::LIMIT_EXCEEDED,
      absl::StrCat("the answer is larger than ", options_.reply_bytes_max,
                   " bytes; stream it, or ask for fewer tokens or log-probabilities")));
  return false;
}

void OpenAiCall::OnEnd(const absl::Status& status) {
  if (!status.ok() && IsServerFault(status)) {
    SLUICE_LOG(kWarning) << "request failed" << Field("request_id", options_.request_id)
                         << Field("status", status.ToString());
  }
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    if (status.ok() && --unfinished_ > 0) return;
    if (status.ok()) return Finish();
    Fail(status);
  }
  CancelAll();  // of other prompts
}

HttpHeaders OpenAiCall::Headers() const {
  HttpHeaders headers = options_.headers;
  headers.insert(headers.end(), rate_headers_.begin(), rate_headers_.end());
  headers.emplace_back("openai-processing-ms",
                       absl::StrCat(absl::ToInt64Milliseconds(clock_.Now() - options_.arrived)));
  return headers;
}

void OpenAiCall::BeginStream() {
  if (std::exchange(begun_, true)) return;
  HttpHeaders headers = Headers();
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");  // proxies must not hold tokens back
  responder_->BeginStream(
      {.content_type = "text/event-stream; charset=utf-8", .headers = std::move(headers)});
}

bool OpenAiCall::SendEvent(absl::string_view data) {
  BeginStream();
  return responder_->Write(absl::StrCat("data: ", data, "\n\n"));
}

void OpenAiCall::Finish() {
  ended_ = true;
  if (!stream_) {
    return responder_->Reply({.headers = Headers(), .body = WholeReply(info_, choices_, usage_)});
  }
  if (include_usage_) SendEvent(UsageChunk(info_, usage_));
  SendEvent("[DONE]");
  responder_->EndStream();
}

// A failure never looks like an end: after a stream has begun it is an event of its own, and [DONE]
// does not follow.
void OpenAiCall::Fail(const absl::Status& status) {
  ended_ = true;
  if (begun_) {
    SendEvent(ErrorJson(status, endpoint_, options_.request_id));
    responder_->EndStream();
    return;
  }
  if (rpc::DetailOf(status).has_rate_limits()) rate_headers_.clear();  // the error has its own
  HttpReply reply = ErrorReply(status, endpoint_, options_.request_id);
  for (auto& header : Headers()) reply.headers.push_back(std::move(header));
  responder_->Reply(std::move(reply));
}

}  // namespace sluice::http
