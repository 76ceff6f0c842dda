#include "tests/sim/oracle.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "base/check.h"
#include "engine/engine.h"

namespace sluice::sim {
namespace {

using request::FinishReason;
using request::SampledToken;

// An engine alone, and what it says of its only sequence.
class Solo final : public engine::EngineEvents {
  FakeClock clock_;
  std::unique_ptr<engine::ModelRunner> model_;
  std::vector<uint8_t> memory_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<kv::PrefixIndex> index_;
  std::unique_ptr<engine::Engine> engine_;

 public:
  Solo(engine::ToyModelOptions options, uint32_t flavour, size_t tokens_max) {
    options.flavour = flavour;
    model_ = *engine::CreateToyModel(options);
    const kv::PageLayout& layout = model_->info().layout;
    const size_t pages = 2 * layout.PagesFor(static_cast<uint32_t>(tokens_max));
    // Pages are aligned to 64 bytes.
    memory_.resize(pages * layout.page_bytes() + 64);
    const size_t skip = (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    pool_ = *kv::PagePool::Create(
        absl::MakeSpan(memory_).subspan(skip, pages * layout.page_bytes()), layout, {});
    index_ = kv::PrefixIndex::Create(*pool_);
    engine_ = engine::Engine::Create({}, *model_, *pool_, *index_, clock_, *this, nullptr);
  }
  void Run(engine::SequenceSpec spec) {
    spec.id = SequenceId(1);
    SLUICE_CHECK(engine_->Submit(std::move(spec)).ok());
    while (engine_->HasWork()) engine_->Step();
  }
  std::vector<kv::PageLease> CopyPages(const std::vector<kv::PageLease>& from) const {
    std::vector<kv::PageLease> to = *pool_->Allocate(from.size(), {1, 1}, TenantId("oracle"));
    for (size_t i = 0; i < from.size(); ++i) {
      std::copy_n(from[i].data() + kv::kPageHeaderBytes,
                  pool_->layout().page_bytes() - kv::kPageHeaderBytes,
                  to[i].data() + kv::kPageHeaderBytes);
    }
    return to;
  }

  void OnStarted(SequenceId, uint32_t) override {}
  void OnPagesFinal(SequenceId, std::vector<engine::FinalPage> pages, int, int) override {
    for (engine::FinalPage& page : pages) {
      if (page.block >= prompt.size()) prompt.resize(page.block + 1);
      prompt[page.block] = std::move(page.pin);
    }
  }
  void OnPromptDone(SequenceId, const std::optional<SampledToken>& token,
                    FinishReason reason) override {
    OnToken(SequenceId(), 0, *token, reason);
  }
  void OnToken(SequenceId, uint32_t, const SampledToken& token, FinishReason reason) override {
    tokens.push_back(token);
    finish = reason;
  }
  void OnFinished(SequenceId, const absl::Status& status, const engine::SequenceStats&) override {
    SLUICE_CHECK(status.ok()) << status.ToString();
  }
  std::vector<kv::PageLease> prompt;
  std::vector<SampledToken> tokens;
  FinishReason finish = FinishReason::kNone;
};

}  // namespace

Id128 NumericsOf(engine::ToyModelOptions model, uint32_t flavour) {
  model.flavour = flavour;
  return (*engine::CreateToyModel(model))->info().numerics_id;
}

Oracle::Oracle(const engine::ToyModelOptions& model, const SimRequest& request)
    : model_(model), request_(request) {}

// The prompt and the first token by one side, the rest by the other: whether on one worker or two.
std::vector<SampledToken> Oracle::Sample(uint32_t prefill, uint32_t decode, uint32_t choice,
                                         FinishReason* finish) const {
  const size_t tokens = request_.prompt.size() + request_.sampling.max_tokens;
  const auto make_spec = [&] {
    engine::SequenceSpec spec;
    spec.prompt = request_.prompt;
    spec.sampling = request_.sampling;
    spec.sampling.choice = choice;
    return spec;
  };
  Solo first(model_, prefill, tokens);
  engine::SequenceSpec prompt = make_spec();
  if (prefill != decode) {
    prompt.kind = engine::SequenceKind::kPrefill;
    prompt.offer_pages = true;
  }
  first.Run(std::move(prompt));
  *finish = first.finish;
  if (prefill == decode || first.finish != FinishReason::kNone) return first.tokens;
  Solo second(model_, decode, tokens);
  engine::SequenceSpec spec = make_spec();
  spec.kind = engine::SequenceKind::kDecode;
  spec.emitted = {first.tokens[0].token};
  spec.pages = second.CopyPages(first.prompt);
  second.Run(std::move(spec));
  *finish = second.finish;
  std::vector<SampledToken> all = first.tokens;
  all.insert(all.end(), second.tokens.begin(), second.tokens.end());
  return all;
}

// The stop string that ends first wins, of those the longest.
Continuation Oracle::Read(std::vector<SampledToken> tokens, FinishReason finish) const {
  Continuation read;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool last = i + 1 == tokens.size();
    const request::TokenId token = tokens[i].token;
    read.tokens.push_back(tokens[i]);
    // What ends a sequence, and what has no byte, is no text.
    if (token >= 256 || (last && finish == FinishReason::kStop)) continue;
    read.text += static_cast<char>(token);
    const std::string* found = nullptr;
    for (const std::string& stop : request_.stops) {
      if (absl::EndsWith(read.text, stop) && (found == nullptr || stop.size() > found->size()))
        found = &stop;
    }
    if (found == nullptr) continue;
    if (!request_.include_stop) read.text.resize(read.text.size() - found->size());
    read.finish_reason = "stop";
    read.matched_stop = *found;
    return read;
  }
  read.finish_reason = std::string(request::FinishReasonName(finish));
  return read;
}

const Continuation* Oracle::Of(Id128 prefill, Id128 decode, uint32_t choice) {
  uint32_t flavours[2] = {kFlavours, kFlavours};
  for (uint32_t flavour = 0; flavour < kFlavours; ++flavour) {
    const Id128 numerics = NumericsOf(model_, flavour);
    if (numerics == prefill) flavours[0] = flavour;
    if (numerics == decode) flavours[1] = flavour;
  }
  if (flavours[0] == kFlavours || flavours[1] == kFlavours) return nullptr;
  const auto key = std::make_tuple(flavours[0], flavours[1], choice);
  const auto found = known_.find(key);
  if (found != known_.end()) return &found->second;
  FinishReason finish = FinishReason::kNone;
  std::vector<SampledToken> tokens = Sample(flavours[0], flavours[1], choice, &finish);
  return &(known_[key] = Read(std::move(tokens), finish));
}

}  // namespace sluice::sim
