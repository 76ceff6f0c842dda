// An engine with a toy model, a pool and a prefix index of its own, and a record of every event.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/toy_model.h"

namespace sluice::engine {

// What one sequence's events said.
struct Record {
  int started = 0;
  uint32_t cached_tokens = 0;
  std::vector<TokenId> tokens;
  std::vector<uint64_t> hashes;
  std::vector<request::SampledToken> sampled;
  request::FinishReason finish = request::FinishReason::kNone;
  int prompt_done = 0;
  // (block, layer) -> times reported.
  std::map<std::pair<uint32_t, int>, int> reported;
  std::set<std::pair<int, int>> layer_groups;
  std::vector<FinalPage> pins;
  int finished = 0;
  absl::Status status;
  SequenceStats stats;
};

class RecordingEvents final : public EngineEvents {
 public:
  std::map<uint64_t, Record> records;
  bool keep_pins = false;

  void OnStarted(SequenceId id, uint32_t cached_tokens) override {
    ++Live(id).started;
    Live(id).cached_tokens = cached_tokens;
  }
  void OnPagesFinal(SequenceId id, std::vector<FinalPage> pages, int begin, int end) override {
    SLUICE_CHECK(Live(id).started == 1 && Live(id).prompt_done == 0);
    Live(id).layer_groups.insert({begin, end});
    for (FinalPage& page : pages) {
      for (int layer = begin; layer < end; ++layer) ++Live(id).reported[{page.block, layer}];
      if (keep_pins) Live(id).pins.push_back(std::move(page));
    }
  }
  void OnPromptDone(SequenceId id, const std::optional<request::SampledToken>& first,
                    request::FinishReason finish) override {
    ++Live(id).prompt_done;
    if (first.has_value()) {
      Live(id).tokens.push_back(first->token);
      Live(id).hashes.push_back(first->logits_hash);
    }
    Live(id).finish = finish;
  }
  void OnToken(SequenceId id, uint32_t position, const request::SampledToken& token,
               request::FinishReason finish) override {
    Record& record = Live(id);
    SLUICE_CHECK(record.started == 1 && record.finish == request::FinishReason::kNone);
    if (record.tokens.empty()) first_position[id.value()] = position;
    SLUICE_CHECK(position == first_position[id.value()] + record.tokens.size());
    record.tokens.push_back(token.token);
    record.sampled.push_back(token);
    record.hashes.push_back(token.logits_hash);
    record.finish = finish;
  }
  void OnFinished(SequenceId id, const absl::Status& status, const SequenceStats& stats) override {
    Record& record = Live(id);
    ++record.finished;
    record.status = status;
    record.stats = stats;
  }

  std::map<uint64_t, uint32_t> first_position;

 private:
  // Nothing may follow the end of a sequence.
  Record& Live(SequenceId id) {
    Record& record = records[id.value()];
    SLUICE_CHECK(record.finished == 0) << "event after the end of sequence " << id;
    return record;
  }
};

// 64-byte aligned memory of a pool.
class PoolMemory {
 public:
  explicit PoolMemory(size_t bytes)
      : data_(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))),
        bytes_(bytes) {
    SLUICE_CHECK(data_ != nullptr);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;
  ~PoolMemory() { std::free(data_); }
  absl::Span<uint8_t> span() { return {data_, bytes_}; }

 private:
  uint8_t* const data_;
  const size_t bytes_;
};

// A spec without pages, again.
inline SequenceSpec Copy(const SequenceSpec& from) {
  SLUICE_CHECK(from.pages.empty());
  SequenceSpec spec;
  spec.id = from.id;
  spec.request = from.request;
  spec.tenant = from.tenant;
  spec.priority = from.priority;
  spec.kind = from.kind;
  spec.prompt = from.prompt;
  spec.emitted = from.emitted;
  spec.sampling = from.sampling;
  spec.deadline = from.deadline;
  spec.domain = from.domain;
  spec.held_blocks = from.held_blocks;
  spec.offer_pages = from.offer_pages;
  return spec;
}

struct TestEngineOptions {
  EngineOptions engine;
  ToyModelOptions model;
  size_t pages = 256;
};

// `wrap` may put another runner around the toy model.
class TestEngine {
 public:
  explicit TestEngine(const TestEngineOptions& options, ModelRunner* runner = nullptr)
      : toy_(MakeToy(options)) {
    ModelRunner& model = runner != nullptr ? *runner : *toy_;
    const kv::PageLayout& layout = model.info().layout;
    memory_ = std::make_unique<PoolMemory>(options.pages * layout.page_bytes());
    auto made = kv::PagePool::Create(memory_->span(), layout, {.poison_freed = true});
    SLUICE_CHECK(made.ok()) << made.status();
    pool_ = *std::move(made);
    index_ = kv::PrefixIndex::Create(*pool_);
    engine_ = Engine::Create(options.engine, model, *pool_, *index_, clock, events, &faults);
  }

  Engine* operator->() { return engine_.get(); }
  kv::PagePool& pool() { return *pool_; }
  kv::PrefixIndex& index() { return *index_; }
  ModelRunner& toy() { return *toy_; }
  Record& record(uint64_t id) { return events.records[id]; }

  // Steps until nothing is left or no step computes anything.
  void Drain() {
    while (engine_->HasWork()) {
      ++steps;
      if (engine_->Step() == 0) break;
    }
  }
  absl::Status Submit(SequenceSpec&& spec) { return engine_->Submit(std::move(spec)); }
  absl::Status Submit(const SequenceSpec& spec) { return engine_->Submit(Copy(spec)); }
  Record Run(const SequenceSpec& spec) { return Run(Copy(spec)); }
  Record Run(SequenceSpec&& spec) {
    const uint64_t id = spec.id.value();
    const absl::Status status = engine_->Submit(std::move(spec));
    SLUICE_CHECK(status.ok()) << status;
    Drain();
    SLUICE_CHECK(record(id).finished == 1) << "sequence " << id << " did not finish";
    return std::move(record(id));
  }

  FakeClock clock;
  FaultInjector faults;
  RecordingEvents events;
  int steps = 0;

 private:
  static std::unique_ptr<ModelRunner> MakeToy(const TestEngineOptions& options) {
    auto made = CreateToyModel(options.model);
    SLUICE_CHECK(made.ok()) << made.status();
    return *std::move(made);
  }
  std::unique_ptr<ModelRunner> toy_;
  std::unique_ptr<PoolMemory> memory_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<kv::PrefixIndex> index_;
  std::unique_ptr<Engine> engine_;
};

inline std::vector<TokenId> RandomPrompt(uint64_t seed, size_t tokens) {
  SeededRandom random(seed);
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<TokenId>(random.Below(256)));
  return prompt;
}

inline SequenceSpec LocalSpec(uint64_t id, std::vector<TokenId> prompt, uint32_t max_tokens = 16) {
  SequenceSpec spec;
  spec.id = SequenceId(id);
  spec.tenant = TenantId("t");
  spec.prompt = std::move(prompt);
  spec.sampling.temperature = 0;
  spec.sampling.max_tokens = max_tokens;
  spec.sampling.ignore_eos = true;
  spec.sampling.logits_hash = true;
  return spec;
}

inline kv::CacheDomain TestDomain(const std::string& tenant = "t") {
  return kv::CacheDomain::Derive("secret", TenantId(tenant), "");
}

}  // namespace sluice::engine
