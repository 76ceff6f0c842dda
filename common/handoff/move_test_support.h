// Two workers' hand-off sides on a simulated network, with hooks on every message: what the tests
// of this folder share.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "handoff/dispatch.h"
#include "handoff/source.h"
#include "handoff/taker.h"
#include "tests/support/sim_loop.h"
#include "transport/loopback.h"

namespace sluice::handoff {

// Passes everything to the loopback transport, after a hook has had its way with it.
class TapTransport final : public transport::Transport {
 public:
  // Changes the message at will; returns how often it is sent: 0 loses it.
  using Hook = std::function<int(v1::MoveMessage& message, std::vector<uint8_t>& payload)>;

  TapTransport(transport::Transport& inner, bool true_get, size_t message_bytes_max)
      : inner_(inner), capabilities_{inner.capabilities().name, true_get, message_bytes_max} {}
  Hook on_send;
  std::vector<v1::MoveMessage> sent;
  bool refuse_sends = false;  // RESOURCE_EXHAUSTED

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override { return inner_.LocalAddress(); }
  absl::StatusOr<transport::Region> AllocateRegion(size_t bytes) override {
    return inner_.AllocateRegion(bytes);
  }
  absl::StatusOr<transport::EndpointId> Connect(absl::string_view address) override {
    return inner_.Connect(address);
  }
  absl::Status Send(transport::EndpointId to, absl::string_view header,
                    absl::Span<const uint8_t> payload) override {
    SLUICE_CHECK(header.size() + payload.size() <= capabilities_.message_bytes_max);
    if (refuse_sends) return absl::ResourceExhaustedError("the send queue is full");
    v1::MoveMessage message;
    SLUICE_CHECK(message.ParseFromArray(header.data(), static_cast<int>(header.size())));
    std::vector<uint8_t> bytes(payload.begin(), payload.end());
    const int copies = on_send ? on_send(message, bytes) : 1;
    sent.push_back(message);
    absl::Status status;
    for (int i = 0; i < copies && status.ok(); ++i)
      status = inner_.Send(to, message.SerializeAsString(), bytes);
    return status;
  }
  absl::StatusOr<transport::FetchId> Fetch(transport::EndpointId from, absl::string_view remote_key,
                                           uint64_t offset, absl::Span<uint8_t> local) override {
    SLUICE_CHECK(capabilities_.true_get);
    return inner_.Fetch(from, remote_key, offset, local);
  }
  void Close(transport::EndpointId endpoint) override { inner_.Close(endpoint); }
  bool Poll(transport::Events& events) override { return inner_.Poll(events); }
  int EventFd() const override { return -1; }
  bool PrepareSleep() override { return inner_.PrepareSleep(); }

 private:
  transport::Transport& inner_;
  const transport::Capabilities capabilities_;
};

struct MoveOptions {
  uint64_t seed = 0;  // of the order of events due at once; the network has its own
  transport::LinkPlan link;
  bool true_get = true;
  size_t message_bytes_max = 1 << 20;
  size_t pages = 16;
  uint32_t layers = 4;
  kernels::KvFormat format = kernels::KvFormat::kBf16;
  DigestMode digests = DigestMode::kFull;
  absl::Duration lease = absl::Seconds(10);
  double drift_margin = 0.01;
  size_t fetches_max = 8;
  size_t served_max = 64;
  size_t transfers_max = 16;
  Guards guards;
};

inline constexpr uint32_t kTestPageTokens = 16;
inline constexpr request::TokenId kTestVocabulary = 1000;

inline kv::PageLayout TestLayout(uint32_t layers,
                                 kernels::KvFormat format = kernels::KvFormat::kBf16) {
  kv::LayoutSpec spec;
  spec.format = format;
  spec.sink_rows = kernels::IsCentred(format) ? 1 : 0;
  spec.page_tokens = kTestPageTokens;
  spec.layers = layers;
  spec.kv_heads = 1;
  spec.head_dim = 16;
  return *kv::PageLayout::Make(spec);
}

inline Id128 TestId(uint64_t value) { return {Mix64(value), Mix64(value + 1)}; }

// One worker without an engine: both sides of the hand-off, a pool, a loop.
class MoveNode final : public SourceEvents {
 public:
  MoveNode(const std::string& name, uint64_t number, const MoveOptions& options,
           testing::SimWorld& world, transport::LoopbackNetwork& network)
      : incarnation(1000 + number), loop(world.AddLoop(name)), random_(number + 17 * options.seed) {
    inner = *network.CreateTransport();
    tap = std::make_unique<TapTransport>(*inner, options.true_get, options.message_bytes_max);
    const kv::PageLayout layout = TestLayout(options.layers, options.format);
    region_ = *tap->AllocateRegion(options.pages * layout.page_bytes());
    pool = *kv::PagePool::Create(region_.memory, layout, {.poison_freed = true});
    index = kv::PrefixIndex::Create(*pool);
    Start(options);
  }

  void Start(const MoveOptions& options) {
    SourceOptions source_options;
    source_options.incarnation = incarnation;
    source_options.digests = options.digests;
    source_options.transfers_max = options.transfers_max;
    source_options.served_max = options.served_max;
    source_options.guards = options.guards;
    source = std::make_unique<HandoffSource>(
        source_options, HandoffSource::Dependencies{*pool, *tap, region_.remote_key, loop, *this,
                                                    counters, &faults});
    TakerOptions taker_options;
    taker_options.incarnation = incarnation;
    taker_options.model_digest = TestId(1);
    taker_options.numerics_id = TestId(2);
    taker_options.vocabulary = kTestVocabulary;
    taker_options.context_tokens = 4096;
    taker_options.lease = options.lease;
    taker_options.drift_margin = options.drift_margin;
    taker_options.reservations_max = options.transfers_max;
    taker_options.fetches_max = options.fetches_max;
    taker_options.guards = options.guards;
    taker = std::make_unique<HandoffTaker>(
        taker_options,
        HandoffTaker::Dependencies{*pool, *index, *tap, loop, random_, counters, &faults});
    dispatcher = std::make_unique<MoveDispatcher>(*source, *taker, counters);
  }

  void OnSourceEnded(LeaseId lease, const absl::Status& status, uint64_t bytes) override {
    SLUICE_CHECK(ended.insert({lease, {status, bytes}}).second) << "a transfer ended twice";
  }
  // Pages neither free nor merely cached.
  uint64_t PagesHeld() const { return pool->counts().active + pool->counts().quarantined; }

  const Incarnation incarnation;
  testing::SimLoop& loop;
  FaultInjector faults;
  MoveCounters counters;
  std::unique_ptr<transport::LoopbackTransport> inner;
  std::unique_ptr<TapTransport> tap;
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<kv::PrefixIndex> index;
  std::unique_ptr<HandoffSource> source;
  std::unique_ptr<HandoffTaker> taker;
  std::unique_ptr<MoveDispatcher> dispatcher;
  std::map<LeaseId, std::pair<absl::Status, uint64_t>> ended;
  bool poll_posted = false;

 private:
  transport::Region region_;
  SeededRandom random_;
};

// A holder `p`, a taker `d` and the network between them, on one virtual clock.
class MoveTest {
 public:
  explicit MoveTest(const MoveOptions& wanted = {})
      : options(wanted),
        world(options.seed),
        network({.seed = options.seed + 1, .limits = {}, .link = options.link}, world.clock()),
        p("p", 1, options, world, network),
        d("d", 2, options, world, network) {
    world.AddSource([this] { return NetworkDue(); }, [this](absl::Time now) { RunNetwork(now); });
  }

  // Runs `task` on a node's loop and everything that is due at this moment.
  void On(MoveNode& node, std::function<void()> task) {
    SLUICE_CHECK(node.loop.Post(std::move(task)));
    world.RunUntil(world.Now());
  }

  std::vector<request::TokenId> Prompt(uint32_t tokens, uint64_t seed = 1) const {
    SeededRandom random(seed);
    std::vector<request::TokenId> prompt;
    for (uint32_t i = 0; i < tokens; ++i)
      prompt.push_back(static_cast<request::TokenId>(random.Below(kTestVocabulary)));
    return prompt;
  }
  ReserveCall Call(std::vector<request::TokenId> prompt) const {
    ReserveCall call;
    call.context.request = RequestId("r");
    call.context.attempt = 3;
    call.context.tenant = TenantId("t");
    call.context.domain = kv::CacheDomain::Derive("secret", TenantId("t"), "");
    call.prompt = std::move(prompt);
    call.max_tokens = 1;
    call.holder = p.incarnation;
    call.holder_layout_hash = p.pool->layout().hash();
    call.holder_layout = p.pool->layout().Describe();
    call.holder_numerics_id = TestId(2);
    return call;
  }

  // What layer `layer` of block `block` holds when the prompt of `seed` was computed.
  std::vector<uint8_t> Content(uint64_t seed, uint32_t block, uint32_t layer) const {
    std::vector<uint8_t> bytes(p.pool->layout().layer_bytes());
    SeededRandom random(Mix64(seed) ^ Mix64((uint64_t{block} << 32) | layer));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next64());
    return bytes;
  }
  void Write(const kv::PageLease& page, uint64_t seed, uint32_t block) const {
    for (uint32_t layer = 0; layer < options.layers; ++layer) {
      const std::vector<uint8_t> bytes = Content(seed, block, layer);
      memcpy(page.data() + p.pool->layout().PieceRange(layer, layer + 1).offset, bytes.data(),
             bytes.size());
    }
  }
  bool Holds(const kv::PageLease& page, uint64_t seed, uint32_t block) const {
    for (uint32_t layer = 0; layer < options.layers; ++layer) {
      const std::vector<uint8_t> bytes = Content(seed, block, layer);
      const uint8_t* at = page.data() + p.pool->layout().PieceRange(layer, layer + 1).offset;
      if (memcmp(at, bytes.data(), bytes.size()) != 0) return false;
    }
    return true;
  }

  // The holder's engine: computes the blocks from `held` on and reports them in groups of layers,
  // then commits. Runs on p's loop. Its own references go with the call, as an engine's do when a
  // prompt is done.
  void ComputeAndOffer(LeaseId lease, uint64_t seed, uint32_t tokens, uint32_t held,
                       uint32_t group = 2) {
    const uint32_t blocks = p.pool->layout().PagesFor(tokens);
    std::vector<kv::PageLease> pages =
        *p.pool->Allocate(blocks - held, TestId(seed), TenantId("t"));
    for (uint32_t i = 0; i < pages.size(); ++i) Write(pages[i], seed, held + i);
    for (uint32_t begin = 0; begin < options.layers && !pages.empty(); begin += group) {
      std::vector<engine::FinalPage> finals;
      for (uint32_t i = 0; i < pages.size(); ++i) finals.push_back({held + i, pages[i].Share()});
      p.source->Offer(lease, std::move(finals), static_cast<int>(begin),
                      static_cast<int>(std::min(begin + group, options.layers)));
    }
    request::SampledToken first;
    first.token = static_cast<request::TokenId>(seed % kTestVocabulary);
    first.logits_hash = Mix64(seed);
    p.source->Commit(lease, tokens, first, 0);
  }

  absl::StatusOr<v1::Grant> Reserve(const ReserveCall& call) {
    absl::StatusOr<v1::Grant> grant = absl::InternalError("did not run");
    On(d, [&] { grant = d.taker->Reserve(call); });
    return grant;
  }
  absl::Status Open(const v1::Grant& grant, uint32_t tokens) {
    absl::Status status;
    On(p, [&] { status = p.source->Open(grant, tokens); });
    return status;
  }
  // Waits for the sequence; `result` is set when it has landed or failed.
  void Attach(LeaseId lease, std::optional<absl::StatusOr<LandedSequence>>* result) {
    On(d, [this, lease, result] {
      d.taker->Attach(
          lease, [result](absl::StatusOr<LandedSequence> landed) { *result = std::move(landed); });
    });
  }

  static LeaseId LeaseOf(const v1::Grant& grant) {
    LeaseId lease;
    SLUICE_CHECK(ParseLease(grant.lease_id(), &lease));
    return lease;
  }

  const MoveOptions options;
  testing::SimWorld world;
  transport::LoopbackNetwork network;
  MoveNode p;
  MoveNode d;

 private:
  static bool WantsPoll(MoveNode& node) {
    return !node.loop.crashed() && !node.poll_posted && !node.inner->PrepareSleep();
  }
  absl::Time NetworkDue() {
    return WantsPoll(p) || WantsPoll(d) ? world.Now() : network.NextEventTime();
  }
  void RunNetwork(absl::Time now) {
    network.AdvanceTo(now);
    for (MoveNode* node : {&p, &d}) {
      if (!WantsPoll(*node)) continue;
      node->poll_posted = true;
      node->loop.Post([node] {
        node->poll_posted = false;
        node->tap->Poll(*node->dispatcher);
      });
    }
  }
};

}  // namespace sluice::handoff
