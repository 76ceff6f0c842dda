// Whole workers with the toy model on simulated loops and network, and the part of a router that
// tests need.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "engine/toy_model.h"
#include "handoff/worker.h"
#include "tests/support/sim_loop.h"
#include "transport/loopback.h"

namespace sluice::handoff {

// What a call's events said. The call's recorder writes it; it may outlive the worker.
struct PrefillRecord {
  int started = 0;
  uint32_t cached_tokens = 0;
  std::optional<request::SampledToken> first;
  request::FinishReason finish = request::FinishReason::kNone;
  int ended = 0;
  absl::Status status;
  engine::SequenceStats stats;
  uint64_t bytes = 0;
};
struct DecodeRecord {
  std::optional<absl::Duration> transfer;
  int started = 0;
  uint32_t held_tokens = 0;
  uint64_t bytes = 0;
  std::string transport;
  std::vector<uint32_t> positions;
  std::vector<request::TokenId> tokens;
  std::vector<uint64_t> hashes;
  request::FinishReason finish = request::FinishReason::kNone;
  int ended = 0;
  absl::Status status;
  engine::SequenceStats stats;
};

class PrefillRecorder final : public PrefillEvents {
 public:
  explicit PrefillRecorder(std::shared_ptr<PrefillRecord> record) : record_(std::move(record)) {}
  void OnStarted(uint32_t cached_tokens) override {
    SLUICE_CHECK(record_->ended == 0);
    ++record_->started;
    record_->cached_tokens = cached_tokens;
  }
  void OnFirstToken(const request::SampledToken& token, request::FinishReason finish) override {
    SLUICE_CHECK(record_->ended == 0 && record_->started == 1);
    record_->first = token;
    record_->finish = finish;
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats,
             uint64_t bytes) override {
    SLUICE_CHECK(++record_->ended == 1);
    record_->status = status;
    record_->stats = stats;
    record_->bytes = bytes;
  }

 private:
  const std::shared_ptr<PrefillRecord> record_;
};

class DecodeRecorder final : public DecodeEvents {
 public:
  explicit DecodeRecorder(std::shared_ptr<DecodeRecord> record) : record_(std::move(record)) {}
  void OnLanded(absl::Duration transfer) override {
    SLUICE_CHECK(record_->started == 0 && !record_->transfer.has_value());
    record_->transfer = transfer;
  }
  void OnStarted(uint32_t held_tokens, uint64_t bytes, absl::string_view transport) override {
    SLUICE_CHECK(record_->ended == 0 && ++record_->started == 1);
    record_->held_tokens = held_tokens;
    record_->bytes = bytes;
    record_->transport = std::string(transport);
  }
  void OnToken(uint32_t position, const request::SampledToken& token,
               request::FinishReason finish) override {
    SLUICE_CHECK(record_->ended == 0 && record_->started == 1 &&
                 record_->finish == request::FinishReason::kNone);
    record_->positions.push_back(position);
    record_->tokens.push_back(token.token);
    record_->hashes.push_back(token.logits_hash);
    record_->finish = finish;
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats) override {
    SLUICE_CHECK(++record_->ended == 1);
    record_->status = status;
    record_->stats = stats;
  }

 private:
  const std::shared_ptr<DecodeRecord> record_;
};

struct NodeOptions {
  WorkerOptions worker;
  engine::ToyModelOptions model;
  size_t pages = 64;
  absl::Duration token_cost = absl::ZeroDuration();  // of a step, per token
};

inline NodeOptions TestNodeOptions() {
  NodeOptions options;
  options.worker.engine.step_tokens_max = 40;
  options.worker.engine.layer_group = 1;
  options.model.eos_one_in = 0;
  return options;
}

// One worker on any two loops.
class WorkerNode {
 public:
  WorkerNode(uint64_t number, const NodeOptions& options, transport::LoopbackNetwork& network,
             Loop& engine_loop, Loop& move_loop)
      : incarnation(100 + number), random_(number) {
    model = *engine::CreateToyModel(options.model);
    transport = *network.CreateTransport();
    const kv::PageLayout& layout = model->info().layout;
    transport::Region region = *transport->AllocateRegion(options.pages * layout.page_bytes());
    pool = *kv::PagePool::Create(region.memory, layout, {.poison_freed = true});
    index = kv::PrefixIndex::Create(*pool);
    Worker::Dependencies deps{*model,      *pool,     *index,  *transport,  region.remote_key,
                              engine_loop, move_loop, random_, incarnation, &faults,
                              {}};
    if (options.token_cost > absl::ZeroDuration()) {
      deps.step_cost = [cost = options.token_cost](uint32_t tokens) { return cost * tokens; };
    }
    worker = Worker::Create(options.worker, deps);
  }
  uint64_t PagesHeld() const { return pool->counts().active + pool->counts().quarantined; }

  const Incarnation incarnation;
  FaultInjector faults;
  std::unique_ptr<engine::ModelRunner> model;
  std::unique_ptr<transport::LoopbackTransport> transport;
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<kv::PrefixIndex> index;
  std::unique_ptr<Worker> worker;

 private:
  SeededRandom random_;
};

// A request as the router sees it.
struct Request {
  CallContext context;
  std::vector<request::TokenId> prompt;
  std::vector<request::TokenId> emitted;
  request::SamplingParams sampling;
};

inline Request MakeRequest(uint64_t seed, uint32_t prompt_tokens, uint32_t max_tokens,
                           bool reuse = true) {
  Request request;
  request.context.request = RequestId("r" + std::to_string(seed));
  request.context.attempt = 1;
  request.context.tenant = TenantId("t");
  if (reuse) request.context.domain = kv::CacheDomain::Derive("secret", TenantId("t"), "");
  SeededRandom random(seed);
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<request::TokenId>(random.Below(256)));
  }
  request.sampling.temperature = seed % 2 == 0 ? 0.0f : 0.9f;
  request.sampling.seed = seed;
  request.sampling.max_tokens = max_tokens;
  request.sampling.logits_hash = true;
  return request;
}

inline ReserveCall ReserveFor(const Request& request, const WorkerNode& holder) {
  ReserveCall call;
  call.context = request.context;
  call.prompt = request.prompt;
  call.emitted_tokens = static_cast<uint32_t>(request.emitted.size());
  call.max_tokens = request.sampling.max_tokens;
  call.holder = holder.incarnation;
  call.holder_layout_hash = holder.pool->layout().hash();
  call.holder_layout = holder.pool->layout().Describe();
  call.holder_numerics_id = holder.model->info().numerics_id;
  return call;
}

inline PrefillCall PrefillFor(const Request& request, LeaseId credit, const v1::Grant& grant) {
  return {request.context, credit, request.prompt, request.emitted, request.sampling, grant};
}

inline DecodeCall DecodeFor(const Request& request, const v1::Grant& grant) {
  LeaseId lease;
  SLUICE_CHECK(ParseLease(grant.lease_id(), &lease));
  return {request.context, lease, {}, request.emitted, request.sampling};
}

inline DecodeCall LocalFor(const Request& request) {
  return {request.context, std::nullopt, request.prompt, request.emitted, request.sampling};
}

// A prefill worker `p` and a decode worker `d` in one simulated world.
class WorkerTest {
 public:
  explicit WorkerTest(const NodeOptions& p_options = TestNodeOptions(),
                      const NodeOptions& d_options = TestNodeOptions(),
                      const transport::LinkPlan& link = {}, uint64_t seed = 0)
      : world(seed), network({.seed = seed + 1, .limits = {}, .link = link}, world.clock()) {
    AddNode(p_options);
    AddNode(d_options);
    world.AddSource([this] { return NetworkDue(); }, [this](absl::Time now) { RunNetwork(now); });
  }
  // Workers go before the loops that they use, once those have stopped.
  ~WorkerTest() {
    for (Site& site : sites_) {
      site.engine_loop->Crash();
      site.move_loop->Crash();
    }
  }

  WorkerNode& p() { return *sites_[0].node; }
  WorkerNode& d() { return *sites_[1].node; }
  testing::SimLoop& engine_loop(int site) { return *sites_[static_cast<size_t>(site)].engine_loop; }
  testing::SimLoop& move_loop(int site) { return *sites_[static_cast<size_t>(site)].move_loop; }
  // The process of a site ends.
  void Crash(int site) {
    Site& dead = sites_[static_cast<size_t>(site)];
    dead.engine_loop->Crash();
    dead.move_loop->Crash();
    network.Crash(dead.node->transport->node());
    dead.node->worker.reset();
  }

  absl::StatusOr<v1::Grant> Reserve(const ReserveCall& call) {
    std::optional<absl::StatusOr<v1::Grant>> grant;
    d().worker->Reserve(call, [&](absl::StatusOr<v1::Grant> made) { grant = std::move(made); });
    SLUICE_CHECK(world.RunUntilTrue([&] { return grant.has_value(); }));
    return *grant;
  }

  // One request in flight, split between p and d.
  struct Flight {
    v1::Grant grant;
    CallId prefill_call;
    CallId decode_call;
    std::shared_ptr<PrefillRecord> prefill = std::make_shared<PrefillRecord>();
    std::shared_ptr<DecodeRecord> decode = std::make_shared<DecodeRecord>();
  };
  Flight Split(const Request& request) {
    Flight flight;
    const LeaseId credit =
        *p().worker->Admit(static_cast<uint32_t>(request.prompt.size()), TenantId("t"));
    flight.grant = *Reserve(ReserveFor(request, p()));
    flight.prefill_call = p().worker->Prefill(PrefillFor(request, credit, flight.grant),
                                              std::make_unique<PrefillRecorder>(flight.prefill));
    flight.decode_call = d().worker->Decode(DecodeFor(request, flight.grant),
                                            std::make_unique<DecodeRecorder>(flight.decode));
    return flight;
  }
  bool RunToEnd(const Flight& flight) {
    return world.RunUntilTrue(
        [&] { return flight.prefill->ended > 0 && flight.decode->ended > 0; });
  }
  // The whole request on one worker.
  std::shared_ptr<DecodeRecord> Local(WorkerNode& node, const Request& request) {
    auto record = std::make_shared<DecodeRecord>();
    node.worker->Decode(LocalFor(request), std::make_unique<DecodeRecorder>(record));
    SLUICE_CHECK(world.RunUntilTrue([&] { return record->ended > 0; }));
    return record;
  }

  testing::SimWorld world;
  transport::LoopbackNetwork network;

 private:
  struct Site {
    testing::SimLoop* engine_loop;
    testing::SimLoop* move_loop;
    std::unique_ptr<WorkerNode> node;
    bool poll_posted = false;
  };
  void AddNode(const NodeOptions& options) {
    Site site;
    site.engine_loop = &world.AddLoop("engine");
    site.move_loop = &world.AddLoop("move");
    site.node = std::make_unique<WorkerNode>(sites_.size() + 1, options, network, *site.engine_loop,
                                             *site.move_loop);
    sites_.push_back(std::move(site));
  }
  static bool WantsPoll(Site& site) {
    return !site.move_loop->crashed() && !site.poll_posted && !site.node->transport->PrepareSleep();
  }
  absl::Time NetworkDue() {
    return std::any_of(sites_.begin(), sites_.end(), WantsPoll) ? world.Now()
                                                                : network.NextEventTime();
  }
  void RunNetwork(absl::Time now) {
    network.AdvanceTo(now);
    for (Site& site : sites_) {
      if (!WantsPoll(site)) continue;
      site.poll_posted = true;
      site.move_loop->Post([&site] {
        site.poll_posted = false;
        site.node->worker->PollTransport();
      });
    }
  }

  std::vector<Site> sites_;
};

}  // namespace sluice::handoff
