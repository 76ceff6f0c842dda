// A scripted cluster for tests of the flow: each says what workers answer, and checks what the
// client sees and what is given back.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/request_flow.h"
#include "tests/support/sim_loop.h"

namespace sluice::cluster {

using request::FinishReason;
using request::SampledToken;

// Records calls; tests answer them by hand.
class ScriptedClient final : public WorkerClient {
 public:
  struct Prefill {
    WorkerId worker;
    handoff::PrefillCall call;
    std::unique_ptr<handoff::PrefillEvents> events;
  };
  struct Decode {
    WorkerId worker;
    handoff::DecodeCall call;
    std::unique_ptr<handoff::DecodeEvents> events;
  };

  explicit ScriptedClient(Loop& loop) : loop_(loop) {}

  void Admit(const WorkerId& worker, const handoff::CallContext&, uint32_t,
             absl::AnyInvocable<void(absl::StatusOr<LeaseId>)> done) override {
    absl::StatusOr<LeaseId> credit =
        next_admit.ok() ? absl::StatusOr<LeaseId>(NewLease(credits)) : next_admit;
    admits.push_back(worker);
    auto answer = [done = std::move(done), credit = std::move(credit)]() mutable {
      done(std::move(credit));
    };
    if (hold_admits) return held_admits.push_back(std::move(answer));
    loop_.Post(std::move(answer));
  }
  void ReturnCredit(const WorkerId&, LeaseId credit) override { credits.erase(credit.value()); }
  void Reserve(const WorkerId& worker, handoff::ReserveCall call,
               absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) override {
    absl::StatusOr<v1::Grant> grant = v1::Grant();
    if (!next_reserve.ok()) {
      grant = next_reserve;
    } else {
      grant->set_lease_id(NewLease(leases).value().ToBytes());
    }
    reserves.emplace_back(worker, std::move(call));
    loop_.Post(
        [done = std::move(done), grant = std::move(grant)]() mutable { done(std::move(grant)); });
  }
  void Release(const WorkerId&, LeaseId lease) override { leases.erase(lease.value()); }
  handoff::CallId StartPrefill(const WorkerId& worker, handoff::PrefillCall call,
                               std::unique_ptr<handoff::PrefillEvents> events) override {
    credits.erase(call.credit.value());
    prefills.push_back({worker, std::move(call), std::move(events)});
    return Register();
  }
  handoff::CallId StartDecode(const WorkerId& worker, handoff::DecodeCall call,
                              std::unique_ptr<handoff::DecodeEvents> events) override {
    decodes.push_back({worker, std::move(call), std::move(events)});
    return Register();
  }
  void CancelCall(handoff::CallId call) override { running.erase(call); }

  absl::StatusOr<LeaseId> next_admit = LeaseId();
  bool hold_admits = false;
  std::vector<absl::AnyInvocable<void()>> held_admits;
  absl::Status next_reserve;
  std::vector<WorkerId> admits;
  std::vector<std::pair<WorkerId, handoff::ReserveCall>> reserves;
  std::vector<Prefill> prefills;
  std::vector<Decode> decodes;
  std::set<handoff::CallId> running;
  std::set<Id128> credits;
  std::set<Id128> leases;

 private:
  LeaseId NewLease(std::set<Id128>& held) {
    const Id128 id{7, ++last_};
    held.insert(id);
    return LeaseId(id);
  }
  handoff::CallId Register() {
    const handoff::CallId id(++last_);
    running.insert(id);
    return id;
  }
  Loop& loop_;
  uint64_t last_ = 0;
};

class RecordingEvents final : public FlowEvents {
 public:
  void OnPlaced(const PlacementDecision&, Id128, Id128) override { ++placed; }
  void OnSought() override { ++sought; }
  void OnToken(uint32_t position, const SampledToken& token, FinishReason) override {
    EXPECT_FALSE(done);
    EXPECT_EQ(position, tokens.size());
    tokens.push_back(token.token);
    if (on_token) on_token();
  }
  void OnDone(const absl::Status& result, const FlowSummary& s) override {
    EXPECT_FALSE(done);
    done = true;
    status = result;
    summary = s;
  }
  int placed = 0;
  int sought = 0;
  std::vector<request::TokenId> tokens;
  bool done = false;
  absl::Status status;
  FlowSummary summary;
  std::function<void()> on_token;
};

class RequestFlowTest : public ::testing::Test {
 protected:
  RequestFlowTest() { ShowWorkers({"p0", "p1", "d0", "d1"}); }

  void ShowWorkers(const std::vector<std::string>& names, bool draining = false) {
    std::vector<Directory::Update> view;
    for (const std::string& name : names) {
      Directory::Update update;
      update.description.id = WorkerId(name);
      update.description.incarnation = Incarnation(1);
      update.description.role = name[0] == 'p'   ? Role::kPrefill
                                : name[0] == 'd' ? Role::kDecode
                                                 : Role::kBoth;
      update.description.page_tokens = 32;
      update.description.numerics_id = numerics_;
      update.ready = true;
      update.draining = draining && name[0] == 'd';
      view.push_back(update);
    }
    directory_.ApplyView(++version_, view, &lost_);
  }

  std::shared_ptr<RequestFlow> Start(absl::Duration deadline = absl::InfiniteDuration()) {
    FlowSpec spec;
    spec.context.request = RequestId("r");
    spec.context.deadline = world_.Now() + deadline;
    spec.prompt = {1, 2, 3, 4, 5};
    spec.sampling.max_tokens = max_tokens_;
    auto flow = RequestFlow::Create(env_, std::move(spec), events_);
    flow->Start();
    world_.RunFor(absl::ZeroDuration());
    return flow;
  }
  // One flow for each of `events`; `started` runs when one has begun.
  std::vector<std::shared_ptr<RequestFlow>> StartAll(
      std::vector<RecordingEvents>& events, uint32_t max_tokens,
      const std::function<void()>& started = [] {}) {
    std::vector<std::shared_ptr<RequestFlow>> flows;
    for (RecordingEvents& each : events) {
      FlowSpec spec;
      spec.context.deadline = absl::InfiniteFuture();
      spec.prompt = {1, 2, 3};
      spec.sampling.max_tokens = max_tokens;
      flows.push_back(RequestFlow::Create(env_, std::move(spec), each));
      flows.back()->Start();
      started();
    }
    return flows;
  }
  static SampledToken Token(request::TokenId id) {
    SampledToken token;
    token.token = id;
    return token;
  }
  // The last dispatch answers as a healthy pair would, up to `tokens` output tokens in all.
  void Serve(uint32_t tokens) {
    auto& prefill = client_.prefills.back();
    auto& decode = client_.decodes.back();
    uint32_t position = static_cast<uint32_t>(prefill.call.emitted.size());
    prefill.events->OnStarted(0);
    if (position == 0) prefill.events->OnFirstToken(Token(100), FinishReason::kNone), position = 1;
    decode.events->OnStarted(0, 0, "test");
    prefill.events->OnEnd(absl::OkStatus(), {}, 64);
    for (; position < tokens; ++position) {
      decode.events->OnToken(position, Token(100 + static_cast<int>(position)),
                             position == 7 ? FinishReason::kLength : FinishReason::kNone);
    }
  }
  void ExpectNothingHeld() {
    EXPECT_TRUE(client_.credits.empty());
    EXPECT_TRUE(client_.leases.empty() || !client_.decodes.empty());
    for (const WorkerState& worker : directory_.Workers()) {
      EXPECT_EQ(worker.sent_requests, 0u) << worker.description.id;
      EXPECT_EQ(worker.sent_prefill_tokens + worker.sent_decode_tokens, 0u)
          << worker.description.id;
    }
  }
  static std::vector<request::TokenId> AllTokens() {
    return {100, 101, 102, 103, 104, 105, 106, 107};
  }

  sluice::testing::SimWorld world_;
  Loop& loop_ = world_.AddLoop("router");
  ScriptedClient client_{loop_};
  Directory directory_{world_.clock(), BreakerOptions{}};
  uint64_t version_ = 0;
  Id128 numerics_ = {};  // of the workers that are shown
  uint32_t max_tokens_ = 8;
  std::vector<WorkerId> lost_;
  SeededRandom random_{3};
  RetryOptions retry_;
  RetryBudget budget_{retry_, world_.clock()};
  PoisonGuard poison_{world_.clock(), PoisonOptions{}};
  PlacementOptions placement_;
  FlowEnvironment env_{
      loop_,
      client_,
      directory_,
      random_,
      budget_,
      retry_,
      [this](const PlacementQuery& query, const FlowSpec&, auto done) {
        auto decision = Place(placement_, query, directory_.Workers(), random_);
        loop_.Post([done = std::move(done), decision = std::move(decision)]() mutable {
          done(std::move(decision));
        });
      },
      poison_};
  RecordingEvents events_;
};

}  // namespace sluice::cluster
