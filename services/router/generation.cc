#include "services/router/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/error.h"
#include "services/router/client_error.h"

namespace sluice::router {

namespace {

// A stream holds at most kPauseBytes and what one step of its choices adds, well below the bound at
// which its connection would be cut. It goes on when the reader has taken some of it.
constexpr size_t kPauseBytes = size_t{128} << 10;
constexpr size_t kResumeBytes = size_t{96} << 10;
constexpr absl::Duration kReaderPeriod = absl::Milliseconds(50);

}  // namespace

using request::FinishReason;
using request::SampledToken;

// One continuation: a flow below, text above.
class Generation::Choice final : public cluster::FlowEvents {
 public:
  Choice(Generation& owner, uint32_t index, text::StopMatcher stops)
      : owner_(owner), index_(index) {
    if (owner.prepared_.model->tokenizer != nullptr) {
      text::OutputOptions options = owner.prepared_.output;
      absl::StrAppend(&options.calls.id_seed, "/", index);
      reader_.emplace(*owner.prepared_.model->tokenizer, std::move(stops), std::move(options));
    }
    if (index < owner.prepared_.resume_positions.size())
      resume_position_ = owner.prepared_.resume_positions[index];
  }

  void Start() {
    cluster::FlowSpec spec = owner_.prepared_.flow;
    spec.sampling.choice = index_;
    // One pair of numerics for all choices, so that one resume finds them all again.
    if (index_ > 0 && owner_.numerics_) {
      spec.prefill_numerics = owner_.numerics_->first;
      spec.decode_numerics = owner_.numerics_->second;
    }
    flow_ = cluster::RequestFlow::Create(owner_.env_, std::move(spec), *this);
    flow_->Start();
  }
  bool started() const { return flow_ != nullptr; }
  bool has_tokens() const { return flow_ != nullptr && flow_->tokens_emitted() > 0; }
  void Pause() {
    if (flow_ != nullptr) flow_->Pause();
  }
  void Resume() {
    if (flow_ != nullptr) flow_->Resume();
  }
  void Cancel(const absl::Status& status) {
    if (flow_ != nullptr) flow_->Finish(status);
  }
  void OnWorkerLost(const WorkerId& worker) {
    if (flow_ != nullptr) flow_->OnWorkerLost(worker);
  }

  void OnPlaced(const cluster::PlacementDecision&, Id128 prefill_numerics,
                Id128 decode_numerics) override {
    if (index_ == 0) owner_.OnPlaced(prefill_numerics, decode_numerics);
  }

  void OnSought() override {
    if (index_ == 0 && owner_.sought_) owner_.sought_();
  }

  void OnToken(uint32_t position, const SampledToken& token, FinishReason finish) override {
    v1::ChoiceDelta delta;
    delta.set_index(index_);
    delta.set_position(position);
    delta.add_token_ids(static_cast<uint32_t>(token.token));
    std::optional<text::StopMatch> match;
    if (reader_) {
      text::OutputDelta output;
      // The token that ended the sequence is not part of its text.
      if (finish != FinishReason::kStop) match = reader_->Append(token.token, &output);
      if (!match && finish != FinishReason::kNone)
        match = reader_->Finish(finish == FinishReason::kStop, &output);
      AddOutput(std::move(output), &delta);
    }
    if (match) {
      delta.set_finish_reason("stop");
      delta.set_matched_stop(owner_.prepared_.request.stop(static_cast<int>(match->index)));
    } else {
      const absl::string_view reason = request::FinishReasonName(finish);
      delta.set_finish_reason(reason.data(), reason.size());
    }
    if (delta.finish_reason() == "stop" && reader_ && reader_->called_tools())
      delta.set_finish_reason("tool_calls");
    AddLogprobs(token, &delta);
    if (owner_.prepared_.request.logits_hash()) delta.add_logits_hashes(token.logits_hash);
    const bool matched = match.has_value();
    // What the client has already is computed again but not sent again.
    if (position >= resume_position_ || !delta.finish_reason().empty()) {
      owner_.Send(std::move(delta), &last_sent_);
    }
    if (index_ == 0 && position == 0) owner_.StartSiblings();
    if (matched) flow_->Finish(absl::OkStatus());
  }

  void OnDone(const absl::Status& status, const cluster::FlowSummary& summary) override {
    owner_.OnChoiceDone(index_, status, summary);
  }

 private:
  static void AddOutput(text::OutputDelta output, v1::ChoiceDelta* delta) {
    delta->set_text(std::move(output.content));
    delta->set_reasoning_content(std::move(output.reasoning));
    for (text::ToolCallDelta& call : output.tool_calls) {
      v1::ToolCallDelta* entry = delta->add_tool_calls();
      entry->set_index(call.index);
      entry->set_id(std::move(call.id));
      entry->set_name(std::move(call.name));
      entry->set_arguments(std::move(call.arguments));
    }
  }
  void AddLogprobs(const SampledToken& token, v1::ChoiceDelta* delta) const {
    if (!owner_.prepared_.request.has_logprobs()) return;
    v1::TokenLogprobs* entry = delta->add_logprobs();
    entry->set_token(static_cast<uint32_t>(token.token));
    entry->set_logprob(token.logprob);
    SetBytes(token.token, entry->mutable_token_bytes());
    for (const request::TokenLogprob& top : token.top) {
      v1::TopLogprob* other = entry->add_top();
      other->set_token(static_cast<uint32_t>(top.token));
      other->set_logprob(top.logprob);
      SetBytes(top.token, other->mutable_token_bytes());
    }
  }
  void SetBytes(request::TokenId token, std::string* out) const {
    if (owner_.prepared_.model->tokenizer == nullptr) return;
    const absl::string_view bytes = owner_.prepared_.model->tokenizer->TokenBytes(token);
    out->assign(bytes.data(), bytes.size());
  }

  Generation& owner_;
  const uint32_t index_;
  std::optional<text::OutputReader> reader_;  // absent without a tokenizer
  std::shared_ptr<cluster::RequestFlow> flow_;
  uint32_t resume_position_ = 0;
  std::optional<absl::Time> last_sent_;
};

std::shared_ptr<Generation> Generation::Create(cluster::FlowEnvironment& environment,
                                               PreparedRequest prepared,
                                               std::unique_ptr<rpc::GenerationSink> sink,
                                               TokenObserver on_token, Sought sought, Done done) {
  return std::shared_ptr<Generation>(new Generation(environment, std::move(prepared),
                                                    std::move(sink), std::move(on_token),
                                                    std::move(sought), std::move(done)));
}

Generation::Generation(cluster::FlowEnvironment& environment, PreparedRequest prepared,
                       std::unique_ptr<rpc::GenerationSink> sink, TokenObserver on_token,
                       Sought sought, Done done)
    : env_(environment),
      prepared_(std::move(prepared)),
      sink_(std::move(sink)),
      on_token_(std::move(on_token)),
      sought_(std::move(sought)),
      done_(std::move(done)) {
  report_.admitted = env_.loop.clock().Now();
}

Generation::~Generation() = default;

void Generation::Start() {
  const auto keep_alive = shared_from_this();
  const auto& stop = prepared_.request.stop();
  const std::vector<std::string> stops(stop.begin(), stop.end());
  for (uint32_t i = 0; i < prepared_.choices; ++i) {
    // Checked by PrepareRequest.
    auto matcher = text::StopMatcher::Create(stops, prepared_.request.include_stop());
    if (!matcher.ok()) return End(matcher.status());
    choices_.push_back(std::make_unique<Choice>(*this, i, *std::move(matcher)));
  }
  choices_[0]->Start();
}

// Siblings wait for the first token of choice 0: its prompt is cached by then, so they share its
// pages.
void Generation::StartSiblings() {
  if (ended_ || paused_) return;
  for (size_t i = 1; i < choices_.size(); ++i) {
    if (!choices_[i]->started()) choices_[i]->Start();
  }
}

void Generation::OnPlaced(Id128 prefill_numerics, Id128 decode_numerics) {
  numerics_ = {prefill_numerics, decode_numerics};
  v1::GenerateStart start;
  start.set_request_id(prepared_.flow.context.request.value());
  start.set_model(prepared_.flow.model);
  start.set_seed(prepared_.flow.sampling.seed);
  start.add_numerics_ids(prefill_numerics.ToBytes());
  start.add_numerics_ids(decode_numerics.ToBytes());
  start.set_prompt_tokens(static_cast<uint32_t>(prepared_.flow.prompt.size()));
  if (prepared_.rate_limits) *start.mutable_rate_limits() = *prepared_.rate_limits;
  start_ = std::move(start);
}

void Generation::Send(v1::ChoiceDelta delta, std::optional<absl::Time>* last_sent) {
  if (ended_) return;
  const absl::Time now = env_.loop.clock().Now();
  if (report_.first_token == absl::InfiniteFuture()) report_.first_token = now;
  if (on_token_ && last_sent->has_value()) on_token_(now - **last_sent);
  *last_sent = now;
  v1::GenerateResponse response;
  if (start_) *response.mutable_start() = *std::exchange(start_, std::nullopt);
  *response.add_deltas() = std::move(delta);
  const size_t waiting_bytes = sink_->backlog_bytes();
  if (!sink_->OnMessage(std::move(response))) {
    return End(paused_ ? SlowReader(waiting_bytes) : absl::CancelledError("the client left"));
  }
  if (sink_->backlog_bytes() > kPauseBytes) Pause();
}

void Generation::Pause() {
  if (std::exchange(paused_, true)) return;
  ++report_.pauses;
  for (auto& choice : choices_) choice->Pause();
  WatchReader(env_.loop.clock().Now() + prepared_.reader_patience);
}

absl::Status Generation::SlowReader(size_t waiting_bytes) const {
  return rpc::MakeError(
      v1::SLOW_CONSUMER,
      absl::StrCat("the client has not read ", waiting_bytes, " bytes of its stream, and is given ",
                   absl::FormatDuration(prepared_.reader_patience),
                   "; read faster or ask for fewer tokens"));
}

void Generation::WatchReader(absl::Time until) {
  reader_timer_ =
      env_.loop.RunAt(env_.loop.clock().Now() + kReaderPeriod, [weak = weak_from_this(), until] {
        const auto live = weak.lock();
        if (live == nullptr || live->ended_) return;
        live->reader_timer_ = kNoTimer;
        if (live->sink_->backlog_bytes() <= kResumeBytes) {
          live->paused_ = false;
          for (auto& choice : live->choices_) choice->Resume();
          if (live->choices_[0]->has_tokens()) live->StartSiblings();
        } else if (live->env_.loop.clock().Now() >= until) {
          live->End(live->SlowReader(live->sink_->backlog_bytes()));
        } else {
          live->WatchReader(until);
        }
      });
}

void Generation::OnChoiceDone(uint32_t index, const absl::Status& status,
                              const cluster::FlowSummary& summary) {
  v1::Usage& usage = report_.usage;
  usage.set_completion_tokens(usage.completion_tokens() + summary.usage.completion_tokens);
  usage.set_recomputed_tokens(usage.recomputed_tokens() + summary.usage.recomputed_tokens);
  report_.moves.insert(report_.moves.end(), summary.moves.begin(), summary.moves.end());
  if (index == 0) {
    report_.first_choice = summary;
    usage.set_prompt_tokens(summary.usage.prompt_tokens);
    usage.set_cached_tokens(summary.usage.cached_tokens);
  }
  if (ended_) return;  // only what it did still counts
  if (!status.ok()) return End(ClientError(status, summary, env_.retry));
  if (++choices_done_ == choices_.size()) {
    v1::GenerateResponse last;
    *last.mutable_usage() = usage;
    sink_->OnMessage(std::move(last));
    End(absl::OkStatus());
  }
}

void Generation::Cancel(const absl::Status& status) { End(status); }

void Generation::OnWorkerLost(const WorkerId& worker) {
  const auto keep_alive = shared_from_this();
  for (auto& choice : choices_) choice->OnWorkerLost(worker);
}

void Generation::End(const absl::Status& status) {
  if (ended_) return;
  const auto keep_alive = shared_from_this();
  ended_ = true;
  if (reader_timer_ != kNoTimer) env_.loop.Cancel(std::exchange(reader_timer_, kNoTimer));
  for (auto& choice : choices_) choice->Cancel(absl::CancelledError("the request ended"));
  report_.status = status;
  sink_->OnEnd(rpc::WithContext(status, "router", prepared_.flow.context.request.value()));
  if (done_) std::exchange(done_, nullptr)(report_);
}

}  // namespace sluice::router
