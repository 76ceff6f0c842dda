#include "tests/sim/sim_user.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "sluice/v1/inference.pb.h"
#include "tests/sim/sim_router.h"

namespace sluice::sim {
namespace {

v1::GenerateRequest ToProto(const SimRequest& request, size_t number) {
  v1::GenerateRequest out;
  out.set_request_id(absl::StrCat("r", number));
  for (request::TokenId token : request.prompt)
    out.mutable_token_ids()->add_ids(static_cast<uint32_t>(token));
  const request::SamplingParams& s = request.sampling;
  v1::SamplingOptions* sampling = out.mutable_sampling();
  sampling->set_temperature(s.temperature);
  sampling->set_top_p(s.top_p);
  sampling->set_top_k(s.top_k);
  sampling->set_min_p(s.min_p);
  sampling->set_frequency_penalty(s.frequency_penalty);
  sampling->set_presence_penalty(s.presence_penalty);
  sampling->set_repetition_penalty(s.repetition_penalty);
  sampling->set_seed(s.seed);
  out.set_max_tokens(s.max_tokens);
  out.set_min_tokens(s.min_tokens);
  out.set_choices(request.choices);
  for (const std::string& stop : request.stops) out.add_stop(stop);
  out.set_include_stop(request.include_stop);
  for (request::TokenId token : s.stop_token_ids)
    out.add_stop_token_ids(static_cast<uint32_t>(token));
  out.set_ignore_eos(s.ignore_eos);
  if (s.logprobs >= 0) out.set_logprobs(static_cast<uint32_t>(s.logprobs));
  out.set_logits_hash(s.logits_hash);
  out.set_cache_salt(request.salt);
  out.set_priority(request.priority);
  return out;
}

}  // namespace

// One request, over as many calls as it takes. Held by SimUsers to the end.
class SimUsers::User {
 public:
  User(SimUsers& owner, size_t number, const SimRequest& request, SimOutcome& outcome)
      : owner_(owner),
        number_(number),
        request_(request),
        outcome_(outcome),
        oracle_(owner.model_, request),
        choices_(request.choices),
        router_(number % owner.routers_.size()) {
    outcome_.tokens.resize(request.choices);
  }

  void Start() {
    if (request_.leaves.has_value())
      owner_.loop_.RunAt(Now() + *request_.leaves, [this] { Leave(); });
    Call();
  }
  // The stream of this call has broken.
  void OnBroken(uint64_t call) {
    if (call != call_ || outcome_.ends > 0) return;
    ++call_;
    router_ = (router_ + 1) % owner_.routers_.size();
    Again();
  }
  void OnRouterDied(const RouterSlot& dead) {
    if (outcome_.ends > 0 || life_ != dead.life) return;
    owner_.loop_.RunAt(Now() + owner_.options_.detect_max * owner_.random_.Unit(),
                       [this, call = call_] { OnBroken(call); });
  }
  void OnMessage(uint64_t call, const v1::GenerateResponse& message) {
    if (call != call_) return;
    if (outcome_.ends > 0) {
      if (!outcome_.left) Problem("got a message after its end");
      return;
    }
    if (message.has_start()) OnStart(message.start());
    for (const v1::ChoiceDelta& delta : message.deltas()) OnDelta(delta);
    if (message.has_usage()) OnUsage(message.usage());
  }
  void OnEnd(uint64_t call, const absl::Status& status) {
    if (call != call_) return;
    if (outcome_.ends > 0 && outcome_.left) return;
    if (status.ok() && !done_) Problem("is done without its usage");
    End(status);
  }

 private:
  // What a resumed stream must not change.
  struct Promise {
    uint64_t seed = 0;
    Id128 prefill;
    Id128 decode;
    friend bool operator==(const Promise& a, const Promise& b) {
      return a.seed == b.seed && a.prefill == b.prefill && a.decode == b.decode;
    }
  };
  struct Choice {
    std::string text;
    bool finished = false;
  };

  absl::Time Now() const { return owner_.loop_.clock().Now(); }
  void Problem(const std::string& what) {
    owner_.problem_(absl::StrCat("request ", number_, " ", what));
  }
  void Tell(const std::string& what) {
    if (owner_.told_) owner_.told_(absl::StrCat("r", number_, " ", what));
  }

  void Again() {
    Tell("resumes");
    owner_.loop_.RunAt(Now() + owner_.options_.retry_after, [this, call = call_] {
      if (call == call_) Call();  // else another break was noticed meanwhile, and is retried
    });
  }
  void Call() {
    if (outcome_.ends > 0) return;
    if (Now() >= outcome_.due)
      return End(absl::DeadlineExceededError("no router was found in time"));
    v1::GenerateRequest request = ToProto(request_, number_);
    if (promise_.has_value()) {
      v1::ResumePoint* resume = request.mutable_resume();
      resume->set_seed(promise_->seed);
      resume->add_numerics_ids(promise_->prefill.ToBytes());
      resume->add_numerics_ids(promise_->decode.ToBytes());
      for (const auto& tokens : outcome_.tokens)
        resume->add_positions(static_cast<uint32_t>(tokens.size()));
    }
    last_arrival_ = Now();
    life_ = owner_.routers_[router_].life;
    owner_.loop_.RunAt(Now() + owner_.Delay(),
                       [this, call = call_, life = life_, request = std::move(request)]() mutable {
                         if (call == call_) Arrive(life, std::move(request));
                       });
  }
  void Arrive(uint64_t life, v1::GenerateRequest request);
  void OnStart(const v1::GenerateStart& start) {
    Promise promise;
    promise.seed = start.seed();
    if (start.numerics_ids_size() != 2 ||
        !Id128::FromBytes(start.numerics_ids(0), &promise.prefill) ||
        !Id128::FromBytes(start.numerics_ids(1), &promise.decode)) {
      return Problem("began without numerics");
    }
    if (promise.seed != request_.sampling.seed) Problem("began with another seed");
    if (start.prompt_tokens() != request_.prompt.size()) Problem("began with another prompt");
    if (promise_.has_value()) ++outcome_.resumes;
    if (promise_.has_value() && !(*promise_ == promise)) Problem("went on with other numerics");
    promise_ = promise;
  }
  void OnDelta(const v1::ChoiceDelta& delta);
  bool SameLogprobs(const v1::ChoiceDelta& delta, const request::SampledToken& token) const;
  void OnUsage(const v1::Usage& usage) {
    done_ = true;
    size_t tokens = 0;
    for (size_t i = 0; i < choices_.size(); ++i) {
      tokens += outcome_.tokens[i].size();
      if (!choices_[i].finished) Problem(absl::StrCat("is done, but choice ", i, " is not"));
    }
    if (usage.completion_tokens() != tokens || usage.prompt_tokens() != request_.prompt.size()) {
      Problem(absl::StrCat("is charged ", usage.prompt_tokens(), " + ", usage.completion_tokens(),
                           " tokens of ", request_.prompt.size(), " + ", tokens));
    }
  }
  void Leave() {
    if (outcome_.ends > 0) return;
    outcome_.left = true;
    if (cancel_) {
      owner_.loop_.RunAt(Now() + owner_.Delay(), [this, life = life_, cancel = cancel_] {
        const RouterSlot& slot = owner_.routers_[router_];
        if (slot.router != nullptr && slot.life == life) cancel();
      });
    }
    End(absl::CancelledError("the client left"));
  }
  void End(const absl::Status& status) {
    Tell(absl::StrCat("ends ", absl::StatusCodeToString(status.code())));
    if (++outcome_.ends > 1) return Problem(absl::StrCat("ended again: ", status.ToString()));
    outcome_.status = status;
    outcome_.ended = Now();
    --owner_.running_;
  }

  friend class Sink;
  SimUsers& owner_;
  const size_t number_;
  const SimRequest& request_;
  SimOutcome& outcome_;
  Oracle oracle_;
  std::vector<Choice> choices_;
  size_t router_;
  uint64_t call_ = 0;
  uint64_t life_ = 0;  // of the router that has the call
  std::function<void()> cancel_;
  absl::Time last_arrival_ = absl::InfinitePast();
  std::optional<Promise> promise_;
  bool done_ = false;
};

// The router's end of a call.
class SimUsers::Sink final : public rpc::GenerationSink {
 public:
  Sink(User& user, uint64_t call) : user_(user), call_(call) {}
  bool OnMessage(v1::GenerateResponse message) override {
    Send([user = &user_, call = call_, message = std::move(message)] {
      user->OnMessage(call, message);
    });
    return true;
  }
  void OnEnd(const absl::Status& status) override {
    Send([user = &user_, call = call_, status] { user->OnEnd(call, status); });
  }

 private:
  // In order.
  void Send(std::function<void()> deliver) {
    SimUsers& owner = user_.owner_;
    user_.last_arrival_ = std::max(user_.last_arrival_, user_.Now() + owner.Delay());
    owner.loop_.RunAt(user_.last_arrival_, std::move(deliver));
  }
  User& user_;
  const uint64_t call_;
};

void SimUsers::User::Arrive(uint64_t life, v1::GenerateRequest request) {
  const RouterSlot& slot = owner_.routers_[router_];
  if (slot.router == nullptr || slot.life != life) return OnBroken(call_);
  cancel_ =
      slot.router->core().Generate(std::move(request), {TenantId(request_.tenant), outcome_.due},
                                   std::make_unique<Sink>(*this, call_));
  if (outcome_.left) cancel_();
}

bool SimUsers::User::SameLogprobs(const v1::ChoiceDelta& delta,
                                  const request::SampledToken& token) const {
  const bool wanted = request_.sampling.logprobs >= 0;
  if (delta.logprobs_size() != (wanted ? 1 : 0)) return false;
  const bool hashed = request_.sampling.logits_hash;
  if (delta.logits_hashes_size() != (hashed ? 1 : 0)) return false;
  if (hashed && delta.logits_hashes(0) != token.logits_hash) return false;
  if (!wanted) return true;
  const v1::TokenLogprobs& got = delta.logprobs(0);
  if (got.logprob() != token.logprob || got.top_size() != static_cast<int>(token.top.size()))
    return false;
  for (int i = 0; i < got.top_size(); ++i) {
    const request::TokenLogprob& top = token.top[static_cast<size_t>(i)];
    if (got.top(i).token() != static_cast<uint32_t>(top.token) ||
        got.top(i).logprob() != top.logprob) {
      return false;
    }
  }
  return true;
}

void SimUsers::User::OnDelta(const v1::ChoiceDelta& delta) {
  if (!promise_.has_value()) return Problem("got a token before its start");
  if (delta.index() >= choices_.size() || delta.token_ids_size() != 1)
    return Problem("got what it had not asked for");
  Choice& choice = choices_[delta.index()];
  std::vector<request::TokenId>& tokens = outcome_.tokens[delta.index()];
  // The end of a choice comes again when the stream is resumed behind it.
  if (delta.position() < tokens.size() && outcome_.resumes > 0 && choice.finished) return;
  const Continuation* expected = oracle_.Of(promise_->prefill, promise_->decode, delta.index());
  if (expected == nullptr) return Problem("was served with numerics that nobody has");
  const std::string where = absl::StrCat(" of choice ", delta.index());
  if (choice.finished) return Problem("got a token after the end" + where);
  if (delta.position() != tokens.size()) {
    return Problem(absl::StrCat("got position ", delta.position(), " after ", tokens.size(),
                                " tokens", where));
  }
  if (tokens.size() >= expected->tokens.size()) return Problem("got too many tokens" + where);
  const request::SampledToken& due = expected->tokens[tokens.size()];
  const auto token = static_cast<request::TokenId>(delta.token_ids(0));
  if (token != due.token) {
    return Problem(absl::StrCat("got token ", token, " at position ", tokens.size(), where,
                                "; undisturbed it is ", due.token));
  }
  if (!SameLogprobs(delta, due)) Problem("got other log-probabilities" + where);
  tokens.push_back(token);
  Tell(absl::StrCat("token ", tokens.size() - 1, where));
  choice.text += delta.text();
  if (!absl::StartsWith(expected->text, choice.text)) Problem("got another text" + where);
  if (delta.finish_reason().empty()) return;
  choice.finished = true;
  if (tokens.size() != expected->tokens.size() || choice.text != expected->text ||
      delta.finish_reason() != expected->finish_reason ||
      delta.matched_stop() != expected->matched_stop) {
    Problem(absl::StrCat("ended with '", delta.finish_reason(), "' after ", tokens.size(),
                         " tokens", where, "; undisturbed with '", expected->finish_reason,
                         "' after ", expected->tokens.size()));
  }
}

SimUsers::SimUsers(testing::SimLoop& loop, const std::vector<RouterSlot>& routers,
                   const engine::ToyModelOptions& model, const Options& options, uint64_t seed,
                   std::function<void(std::string)> problem, std::function<void(std::string)> told)
    : loop_(loop),
      routers_(routers),
      model_(model),
      options_(options),
      random_(seed),
      problem_(std::move(problem)),
      told_(std::move(told)) {}

SimUsers::~SimUsers() = default;

size_t SimUsers::Submit(const SimRequest& request) {
  const size_t number = outcomes_.size();
  outcomes_.push_back(std::make_unique<SimOutcome>());
  SimOutcome& outcome = *outcomes_.back();
  outcome.hurried = request.deadline < absl::Seconds(15);
  outcome.due = loop_.clock().Now() + request.deadline;
  ++running_;
  users_.push_back(std::make_unique<User>(*this, number, request, outcome));
  users_.back()->Start();
  return number;
}

void SimUsers::OnRouterDied(const RouterSlot& dead) {
  for (const auto& user : users_) user->OnRouterDied(dead);
}

}  // namespace sluice::sim
