// Two workers on real threads: many requests at once, some of them cancelled at odd moments. Each
// that ends well says what it says alone. Run under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/thread_loop.h"
#include "handoff/worker_test_support.h"

namespace sluice::handoff {
namespace {

// Records, then tells a waiting thread.
class WaitablePrefill final : public PrefillEvents {
 public:
  WaitablePrefill(std::shared_ptr<PrefillRecord> record, std::function<void()> on_first)
      : inner_(record), on_first_(std::move(on_first)) {}
  std::future<void> ended() { return ended_.get_future(); }
  void OnStarted(uint32_t cached_tokens) override { inner_.OnStarted(cached_tokens); }
  void OnFirstToken(const request::SampledToken& token, request::FinishReason finish) override {
    inner_.OnFirstToken(token, finish);
    if (on_first_) on_first_();
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats,
             uint64_t bytes) override {
    inner_.OnEnd(status, stats, bytes);
    ended_.set_value();
  }

 private:
  PrefillRecorder inner_;
  const std::function<void()> on_first_;
  std::promise<void> ended_;
};

class WaitableDecode final : public DecodeEvents {
 public:
  explicit WaitableDecode(std::shared_ptr<DecodeRecord> record) : inner_(std::move(record)) {}
  std::future<void> ended() { return ended_.get_future(); }
  void OnStarted(uint32_t held_tokens, uint64_t bytes, absl::string_view transport) override {
    inner_.OnStarted(held_tokens, bytes, transport);
  }
  void OnToken(uint32_t position, const request::SampledToken& token,
               request::FinishReason finish) override {
    inner_.OnToken(position, token, finish);
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats) override {
    inner_.OnEnd(status, stats);
    ended_.set_value();
  }

 private:
  DecodeRecorder inner_;
  std::promise<void> ended_;
};

// A worker on two threads of its own, its transport wired into the move loop as production does it.
struct Site {
  Site(uint64_t number, const NodeOptions& options, transport::LoopbackNetwork& network,
       const Clock& clock)
      : engine_loop(*ThreadLoop::Start("engine", clock, 1024)),
        move_loop(*ThreadLoop::Start("move", clock, 1024)) {
    node = std::make_unique<WorkerNode>(number, options, network, *engine_loop, *move_loop);
    move_loop->Post([this] {
      SLUICE_CHECK(
          move_loop
              ->WatchReadable(node->transport->EventFd(), [this] { node->worker->PollTransport(); })
              .ok());
      move_loop->SetBeforeSleep([this] {
        if (node->transport->PrepareSleep()) return false;
        node->worker->PollTransport();
        return true;
      });
    });
  }
  ~Site() {
    engine_loop->Stop();
    move_loop->Stop();
    node->worker.reset();
  }

  std::unique_ptr<ThreadLoop> engine_loop;
  std::unique_ptr<ThreadLoop> move_loop;
  std::unique_ptr<WorkerNode> node;
};

enum class Trouble { kNone, kCancelAtOnce, kCancelAtFirstToken, kRelease };

// Returns what went wrong with one request, or an empty string.
std::string RunOne(Site& p, Site& d, const Request& request,
                   const std::vector<request::TokenId>& expected, Trouble trouble) {
  absl::StatusOr<LeaseId> credit =
      p.node->worker->Admit(static_cast<uint32_t>(request.prompt.size()), TenantId("t"));
  while (!credit.ok()) {
    std::this_thread::yield();
    credit = p.node->worker->Admit(static_cast<uint32_t>(request.prompt.size()), TenantId("t"));
  }
  std::promise<absl::StatusOr<v1::Grant>> reserved;
  d.node->worker->Reserve(ReserveFor(request, *p.node), [&](absl::StatusOr<v1::Grant> grant) {
    reserved.set_value(std::move(grant));
  });
  const absl::StatusOr<v1::Grant> grant = reserved.get_future().get();
  if (!grant.ok()) {
    p.node->worker->ReturnCredit(*credit);
    return std::string(grant.status().message());
  }
  auto prefill_record = std::make_shared<PrefillRecord>();
  auto decode_record = std::make_shared<DecodeRecord>();
  auto decode_events = std::make_unique<WaitableDecode>(decode_record);
  std::future<void> decode_ended = decode_events->ended();
  const CallId decode =
      d.node->worker->Decode(DecodeFor(request, *grant), std::move(decode_events));
  std::function<void()> on_first;
  if (trouble == Trouble::kCancelAtFirstToken)
    on_first = [&d, decode] { d.node->worker->Cancel(decode); };
  auto prefill_events = std::make_unique<WaitablePrefill>(prefill_record, on_first);
  std::future<void> prefill_ended = prefill_events->ended();
  const CallId prefill =
      p.node->worker->Prefill(PrefillFor(request, *credit, *grant), std::move(prefill_events));
  LeaseId lease;
  SLUICE_CHECK(ParseLease(grant->lease_id(), &lease));
  if (trouble == Trouble::kCancelAtOnce) p.node->worker->Cancel(prefill);
  if (trouble == Trouble::kRelease) d.node->worker->Release(lease);
  prefill_ended.get();
  decode_ended.get();
  if (!decode_record->status.ok()) {
    return trouble == Trouble::kNone ? std::string(decode_record->status.message()) : "";
  }
  std::vector<request::TokenId> tokens = {prefill_record->first->token};
  tokens.insert(tokens.end(), decode_record->tokens.begin(), decode_record->tokens.end());
  return tokens == expected ? "" : "other tokens than alone";
}

TEST(WorkerStress, EveryRequestEqualsItsSoloRun) {
  constexpr uint64_t kRequests = 150;
  constexpr uint64_t kThreads = 4;
  std::vector<Request> requests;
  std::vector<std::vector<request::TokenId>> expected;
  WorkerTest solo;
  for (uint64_t i = 0; i < kRequests; ++i) {
    requests.push_back(
        MakeRequest(i, 1 + static_cast<uint32_t>(Mix64(i) % 150), 8, /*reuse=*/i % 3 != 0));
    expected.push_back(solo.Local(solo.d(), requests.back())->tokens);
  }
  SystemClock clock;
  transport::LoopbackNetwork network({.seed = 1, .limits = {}, .link = {}, .self_driven = true},
                                     clock);
  NodeOptions options = TestNodeOptions();
  options.pages = 128;
  options.worker.credits_max = 3;
  Site p(1, options, network, clock);
  Site d(2, options, network, clock);
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> clients;
  for (uint64_t t = 0; t < kThreads; ++t) {
    clients.emplace_back([&] {
      for (uint64_t i = next++; i < kRequests; i = next++) {
        const auto trouble = static_cast<Trouble>(i % 5 == 4 ? 1 + i / 5 % 3 : 0);
        EXPECT_EQ(RunOne(p, d, requests[i], expected[i], trouble), "") << "request " << i;
        p.node->worker->counters();
        d.node->worker->load();
        d.node->worker->last_progress();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  // Releases are under way still.
  while (p.node->PagesHeld() + d.node->PagesHeld() > 0) std::this_thread::yield();
  EXPECT_EQ(p.node->worker->counters().bytes_sent, d.node->worker->counters().bytes_received);
  EXPECT_GT(p.node->worker->counters().bytes_sent, 0u);
}

TEST(WorkerStress, DestructionInFullSwingEndsEveryCall) {
  SystemClock clock;
  transport::LoopbackNetwork network({.seed = 1, .limits = {}, .link = {}, .self_driven = true},
                                     clock);
  NodeOptions options = TestNodeOptions();
  options.pages = 128;
  std::vector<std::shared_ptr<DecodeRecord>> records;
  {
    Site d(2, options, network, clock);
    for (uint64_t i = 0; i < 20; ++i) {
      records.push_back(std::make_shared<DecodeRecord>());
      d.node->worker->Decode(LocalFor(MakeRequest(i, 100, 400)),
                             std::make_unique<DecodeRecorder>(records.back()));
    }
  }
  for (const auto& record : records) EXPECT_EQ(record->ended, 1);
}

}  // namespace
}  // namespace sluice::handoff
