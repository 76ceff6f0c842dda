#include "services/cli/load/load_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "grpcpp/channel.h"
#include "rpc/channel_pool.h"
#include "rpc/status_map.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
constexpr absl::Duration kDescribeTimeout = absl::Seconds(10);

}  // namespace

// Fills one record on gRPC's threads.
class LoadRunner::Reader final : public rpc::StreamReader<v1::GenerateResponse> {
 public:
  Reader(size_t session, RequestRecord record, bool keep_output, const Clock& clock,
         std::shared_ptr<Queue> finished, std::shared_ptr<std::atomic<uint64_t>> output_tokens)
      : keep_output_(keep_output),
        clock_(clock),
        finished_(std::move(finished)),
        output_tokens_(std::move(output_tokens)) {
    result_.session = session;
    result_.record = std::move(record);
  }

  void OnMessage(v1::GenerateResponse message) override {
    const absl::Time now = clock_.Now();
    uint32_t tokens = 0;
    for (const v1::ChoiceDelta& delta : message.deltas()) {
      tokens += static_cast<uint32_t>(delta.token_ids_size());
      if (!keep_output_) continue;
      result_.output.insert(result_.output.end(), delta.token_ids().begin(),
                            delta.token_ids().end());
    }
    result_.record.OnTokens(tokens, now);
    output_tokens_->fetch_add(tokens, std::memory_order_relaxed);
    if (message.has_usage()) result_.record.usage = message.usage();
  }

  void OnEnd(const absl::Status& status) override {
    result_.record.OnEnd(status, clock_.Now());
    finished_->TryPush(std::move(result_));
  }

 private:
  const bool keep_output_;
  const Clock& clock_;
  const std::shared_ptr<Queue> finished_;
  const std::shared_ptr<std::atomic<uint64_t>> output_tokens_;
  Finished result_;
};

LoadRunner::LoadRunner(LoadRunOptions options, const Clock& clock, uint32_t connections)
    : options_(std::move(options)),
      clock_(clock),
      // One entry for each session that may be in flight, and the wake-up of Stop.
      finished_(std::make_shared<Queue>(kRequestsMax + 1)),
      output_tokens_(std::make_shared<std::atomic<uint64_t>>(0)) {
  const size_t count = std::max<size_t>(connections, options_.endpoints.size());
  for (size_t i = 0; i < count; ++i) {
    addresses_.push_back(options_.endpoints[i % options_.endpoints.size()].address);
    stubs_.push_back(v1::Inference::NewStub(rpc::MakeChannel(addresses_.back(), {})));
  }
}

LoadRunner::~LoadRunner() = default;

rpc::CallOptions LoadRunner::CallOptionsOf(size_t tenant) const {
  rpc::CallOptions options;
  if (tenant < options_.api_keys.size()) {
    options.metadata.emplace_back("authorization", "Bearer " + options_.api_keys[tenant]);
  }
  return options;
}

absl::StatusOr<v1::Model> LoadRunner::Describe() {
  v1::ListModelsResponse models;
  for (size_t i = 0; i < stubs_.size(); ++i) {
    rpc::CallOptions options = CallOptionsOf(0);
    options.timeout = kDescribeTimeout;
    rpc::ClientCall call(options);
    models.Clear();
    const absl::Status status =
        rpc::FromGrpc(stubs_[i]->ListModels(call.context(), v1::ListModelsRequest(), &models));
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("grpc://", addresses_[i], ": ", status.message()));
    }
  }
  std::vector<std::string> names;
  for (const v1::Model& model : models.models()) {
    if (options_.model.empty() || model.id() == options_.model) {
      if (model.vocabulary() == 0) break;
      return model;
    }
    names.push_back(model.id());
  }
  return absl::NotFoundError(absl::StrCat("model '", options_.model,
                                          "' is not served with a vocabulary; the cluster has [",
                                          absl::StrJoin(names, ", "), "]"));
}

void LoadRunner::Send(const LoadSession& session, const Dispatch& dispatch, const v1::Model& model,
                      Conversation* conversation) {
  const Turn& turn = session.turns[dispatch.turn];
  for (const TokenRun& run : turn.input) {
    AppendTokens(run, model.vocabulary(), &conversation->tokens);
  }
  const bool more = dispatch.turn + 1 < session.turns.size();
  v1::GenerateRequest request;
  request.set_model(model.id());
  *request.mutable_token_ids()->mutable_ids() = {conversation->tokens.begin(),
                                                 conversation->tokens.end()};
  if (!more) std::vector<uint32_t>().swap(conversation->tokens);
  request.set_max_tokens(turn.output_tokens);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  if (session.turns.size() > 1) request.set_session_affinity(absl::StrCat(dispatch.session));

  RequestRecord record;
  record.tenant = TenantOf(dispatch.session);
  record.wanted_tokens = turn.output_tokens;
  record.due = dispatch.due;
  record.sent = clock_.Now();
  rpc::CallOptions options = CallOptionsOf(record.tenant);
  options.timeout = options_.timeout;
  v1::Inference::Stub& stub = *stubs_[next_stub_++ % stubs_.size()];
  conversation->call = rpc::StartServerStream<v1::GenerateRequest, v1::GenerateResponse>(
      std::move(request), options,
      [&stub](auto* context, auto* message, auto* reactor) {
        stub.async()->Generate(context, message, reactor);
      },
      std::make_unique<Reader>(dispatch.session, std::move(record), more, clock_, finished_,
                               output_tokens_));
}

LoadRun LoadRunner::Run(const std::vector<LoadSession>& sessions, const v1::Model& model,
                        DispatchOptions dispatch,
                        const std::function<void(const LoadProgress&)>& progress) {
  std::vector<size_t> turns;
  LoadProgress now_at;
  for (const LoadSession& session : sessions) {
    turns.push_back(session.turns.size());
    now_at.total += session.turns.size();
  }
  const absl::Time start = clock_.Now();
  Dispatcher dispatcher(std::move(dispatch), std::move(turns), start);
  std::vector<Conversation> conversations(sessions.size());
  LoadRun run;
  const auto take = [&](Finished finished) {
    if (finished.record.sent == absl::Time()) return;  // the wake-up of Stop
    Conversation& conversation = conversations[finished.session];
    conversation.call = nullptr;
    conversation.tokens.insert(conversation.tokens.end(), finished.output.begin(),
                               finished.output.end());
    dispatcher.OnDone(finished.session, finished.record.completed(), finished.record.end);
    ++now_at.ended;
    now_at.failed += finished.record.completed() ? 0 : 1;
    run.duration = std::max(run.duration, finished.record.end - start);
    run.records.push_back(std::move(finished.record));
  };
  bool stopped = false;
  while (!dispatcher.finished()) {
    if (stop_.load() && !std::exchange(stopped, true)) {
      dispatcher.Stop();
      for (const Conversation& conversation : conversations) {
        if (conversation.call) conversation.call->Cancel();
      }
    }
    const absl::Time now = clock_.Now();
    while (const auto next = dispatcher.Next(now)) {
      Send(sessions[next->session], *next, model, &conversations[next->session]);
    }
    if (progress) {
      now_at.in_flight = dispatcher.in_flight();
      now_at.output_tokens = output_tokens_->load(std::memory_order_relaxed);
      now_at.elapsed = now - start;
      progress(now_at);
    }
    const absl::Duration wait = std::min(dispatcher.next_due() - clock_.Now(), kProgressInterval);
    auto finished = finished_->PopFor(std::max(wait, absl::ZeroDuration()));
    for (; finished.has_value(); finished = finished_->TryPop()) take(*std::move(finished));
  }
  run.not_sent = dispatcher.not_sent();
  run.peak_in_flight = dispatcher.peak_in_flight();
  return run;
}

void LoadRunner::Stop() {
  stop_.store(true);
  finished_->TryPush(Finished());
}

}  // namespace sluice::cli
