#include "services/cli/client/fake_inference.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rpc/server_stream.h"

namespace sluice::cli {

using Stream = rpc::ServerStream<v1::GenerateResponse>;

std::string FakeInference::TextOf(uint64_t seed, uint32_t position) {
  return absl::StrCat(seed, ":", position, " ");
}

std::string FakeInference::WholeText(uint64_t seed, uint32_t tokens) {
  std::string text;
  for (uint32_t i = 0; i < tokens; ++i) text += TextOf(seed, i);
  return text;
}

bool FakeInference::TakeBreak() {
  MutexLock lock(mutex_);
  return broken_ < options_.breaks && ++broken_ > 0;
}

std::vector<v1::GenerateRequest> FakeInference::requests() const {
  MutexLock lock(mutex_);
  return requests_;
}

std::vector<std::string> FakeInference::keys() const {
  MutexLock lock(mutex_);
  return keys_;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* FakeInference::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto stream = std::make_shared<Stream>(context);
  auto* reactor = stream->reactor();
  const auto key = context->client_metadata().find("authorization");
  {
    MutexLock lock(mutex_);
    requests_.push_back(*request);
    keys_.push_back(key == context->client_metadata().end()
                        ? ""
                        : std::string(key->second.data(), key->second.size()));
  }
  const uint64_t seed = request->has_resume() ? request->resume().seed() : 7;
  const uint32_t first = request->has_resume() ? request->resume().positions(0) : 0;
  const uint32_t last = request->has_max_tokens() ? std::min(options_.tokens, request->max_tokens())
                                                  : options_.tokens;
  const bool breaks = TakeBreak();
  const uint32_t end = breaks ? std::min(last, first + options_.break_after) : last;
  v1::GenerateResponse response;
  response.mutable_start()->set_request_id(request->request_id());
  response.mutable_start()->set_seed(seed);
  response.mutable_start()->add_numerics_ids(options_.numerics);
  response.mutable_start()->add_numerics_ids(options_.numerics);
  for (uint32_t position = first; position < end; ++position) {
    v1::ChoiceDelta* delta = response.add_deltas();
    delta->set_position(position);
    delta->add_token_ids(position % options_.vocabulary);
    delta->set_text(TextOf(seed, position));
    if (position + 1 == last) delta->set_finish_reason("length");
    stream->Write(std::exchange(response, v1::GenerateResponse()));
  }
  if (breaks) {
    stream->Close(options_.break_with);
  } else if (options_.hang) {
    stream->OnGone([stream] { stream->Close(absl::CancelledError("the client left")); });
  } else {
    response.mutable_usage()->set_prompt_tokens(
        static_cast<uint32_t>(request->token_ids().ids_size()));
    response.mutable_usage()->set_cached_tokens(response.usage().prompt_tokens() / 2);
    response.mutable_usage()->set_completion_tokens(last);
    stream->Write(std::move(response));
    stream->Close(absl::OkStatus());
  }
  return reactor;
}

grpc::ServerUnaryReactor* FakeInference::ListModels(grpc::CallbackServerContext* context,
                                                    const v1::ListModelsRequest*,
                                                    v1::ListModelsResponse* response) {
  v1::Model* model = response->add_models();
  model->set_id("fake");
  model->set_vocabulary(options_.vocabulary);
  model->set_context_tokens(1 << 20);
  return rpc::FinishUnary(context, absl::OkStatus());
}

std::unique_ptr<FakeRouter> FakeRouter::Start(const FakeInferenceOptions& options) {
  std::unique_ptr<FakeRouter> router(new FakeRouter(options));
  auto server = rpc::Server::Start({}, {{v1::Inference::service_full_name(), &router->service_}});
  SLUICE_CHECK(server.ok()) << server.status().message();
  router->server_ = *std::move(server);
  return router;
}

FakeRouter::~FakeRouter() { server_->Shutdown(absl::ZeroDuration()); }

}  // namespace sluice::cli
