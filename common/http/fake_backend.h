// A backend for tests: the test plays the router, message by message.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/bounded_queue.h"
#include "rpc/error.h"
#include "rpc/inference_backend.h"

namespace sluice::http {

// One generation in the hands of the test.
struct FakeGeneration {
  v1::GenerateRequest request;
  rpc::Caller caller;
  std::shared_ptr<rpc::GenerationSink> sink;

  bool Start(uint32_t prompt_tokens = 3) const {
    v1::GenerateResponse message;
    v1::GenerateStart* start = message.mutable_start();
    start->set_request_id(request.request_id());
    start->set_model("toy");
    start->set_prompt_tokens(prompt_tokens);
    start->add_numerics_ids(std::string(16, 'n'));
    return sink->OnMessage(std::move(message));
  }
  bool Token(const std::string& text, const std::string& finish = "", uint32_t index = 0) const {
    v1::GenerateResponse message;
    v1::ChoiceDelta* delta = message.add_deltas();
    delta->set_index(index);
    delta->set_text(text);
    delta->add_token_ids(7);
    delta->set_finish_reason(finish);
    if (request.has_logprobs()) {
      v1::TokenLogprobs* entry = delta->add_logprobs();
      entry->set_token(7);
      entry->set_token_bytes(text);
      entry->set_logprob(-1);
    }
    return sink->OnMessage(std::move(message));
  }
  void End(uint32_t completion_tokens, uint32_t cached_tokens = 2,
           uint32_t prompt_tokens = 3) const {
    v1::GenerateResponse message;
    message.mutable_usage()->set_prompt_tokens(prompt_tokens);
    message.mutable_usage()->set_completion_tokens(completion_tokens);
    message.mutable_usage()->set_cached_tokens(cached_tokens);
    sink->OnMessage(std::move(message));
    sink->OnEnd(absl::OkStatus());
  }
};

// Accepts the key "good", and none at all unless `keys` is set. Thread-safe.
class FakeBackend final : public rpc::InferenceBackend {
 public:
  bool keys = false;
  bool ready = true;
  BoundedQueue<FakeGeneration> generations{1024};
  BoundedQueue<std::string> cancelled{1024};  // request ids

  FakeGeneration Next() {
    auto generation = generations.PopFor(absl::Seconds(60));
    return generation ? *std::move(generation) : FakeGeneration();
  }

  absl::StatusOr<TenantId> Authenticate(const identity::Credentials& credentials) override {
    const std::string& key = credentials.bearer;
    if (key == "good" || (!keys && key.empty()))
      return TenantId(credentials.named_tenant.empty() ? "tenant" : credentials.named_tenant);
    return rpc::MakeError(v1::INVALID_API_KEY, "the API key is not known");
  }
  std::function<void()> Generate(v1::GenerateRequest request, rpc::Caller caller,
                                 std::unique_ptr<rpc::GenerationSink> sink) override {
    const std::string id = request.request_id();
    generations.TryPush({std::move(request), std::move(caller), std::move(sink)});
    return [this, id] { cancelled.TryPush(std::string(id)); };
  }
  v1::ListModelsResponse ListModels() override {
    v1::ListModelsResponse response;
    v1::Model* model = response.add_models();
    model->set_id("org/toy");
    model->set_context_tokens(128);
    model->set_created(5);
    return response;
  }
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) override {
    if (request.model() == "none")
      return rpc::MakeError(v1::MODEL_NOT_FOUND, "no model", {.field = "model"});
    v1::TokenizeResponse response;
    for (const char c : request.text()) response.add_ids(static_cast<unsigned char>(c));
    return response;
  }
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request) override {
    v1::DetokenizeResponse response;
    for (const uint32_t id : request.ids())
      response.mutable_text()->push_back(static_cast<char>(id));
    return response;
  }
  bool Ready() const override { return ready; }
};

}  // namespace sluice::http
