#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/engine_impl.h"

namespace sluice::engine {
namespace {

// A piece below this size costs more to describe than to move.
constexpr uint32_t kPieceBytesWanted = 64 << 10;

int LayerGroup(const EngineOptions& options, const ModelInfo& model) {
  if (options.layer_group > 0) return std::min(static_cast<int>(options.layer_group), model.layers);
  const uint32_t bytes = model.layout.layer_bytes();
  return std::clamp(static_cast<int>((kPieceBytesWanted + bytes - 1) / bytes), 1, model.layers);
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(const EngineOptions& options, ModelRunner& model,
                                       kv::PagePool& pool, kv::PrefixIndex& index,
                                       const Clock& clock, EngineEvents& events,
                                       FaultInjector* faults) {
  return std::make_unique<EngineImpl>(options, model, pool, index, clock, events, faults);
}

EngineImpl::EngineImpl(const EngineOptions& options, ModelRunner& model, kv::PagePool& pool,
                       kv::PrefixIndex& index, const Clock& clock, EngineEvents& events,
                       FaultInjector* faults)
    : options_(options),
      model_(model),
      pool_(pool),
      index_(index),
      clock_(clock),
      events_(events),
      faults_(faults),
      layer_group_(LayerGroup(options, model.info())),
      last_progress_(clock.Now()) {
  SLUICE_CHECK(options.step_tokens_max > 0 && options.batch_max > 0);
  SLUICE_CHECK(pool.layout().hash() == model.info().layout.hash())
      << "the pool has another layout than the model";
}

absl::Status EngineImpl::CheckSpec(const SequenceSpec& spec) const {
  const ModelInfo& model = model_.info();
  const size_t tokens = spec.prompt.size() + spec.emitted.size();
  if (spec.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (tokens > static_cast<size_t>(model.context_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and output so far have ", tokens,
                                                   " tokens; the context of ", model.name, " is ",
                                                   model.context_tokens));
  }
  for (const auto* list : {&spec.prompt, &spec.emitted}) {
    for (TokenId token : *list) {
      if (token >= 0 && token < model.vocabulary) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", token, " is outside the vocabulary of ", model.vocabulary, " tokens"));
    }
  }
  absl::Status sampling = request::ValidateSampling(spec.sampling, model.vocabulary);
  if (!sampling.ok()) return sampling;
  if (spec.kind != SequenceKind::kPrefill && spec.emitted.size() >= spec.sampling.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("the output has ", spec.emitted.size(),
                                                   " tokens already; max_tokens is ",
                                                   spec.sampling.max_tokens));
  }
  const size_t prompt_pages = model.layout.PagesFor(static_cast<uint32_t>(spec.prompt.size()));
  if (spec.kind == SequenceKind::kDecode) {
    if (spec.emitted.empty()) return absl::InvalidArgumentError("a decode needs the first token");
    for (const kv::PageLease& page : spec.pages) {
      if (!page.valid())
        return absl::InvalidArgumentError("a decode came with a page that is gone");
    }
    if (spec.pages.size() < prompt_pages) {
      return absl::InvalidArgumentError(absl::StrCat("a prompt of ", spec.prompt.size(),
                                                     " tokens came with ", spec.pages.size(),
                                                     " pages; it fills ", prompt_pages));
    }
  }
  const size_t to_compute = spec.kind == SequenceKind::kPrefill ? spec.prompt.size() : tokens;
  const size_t pages = model.layout.PagesFor(static_cast<uint32_t>(to_compute));
  if (pages > pool_.size()) {
    return absl::ResourceExhaustedError(absl::StrCat(to_compute, " tokens need ", pages,
                                                     " pages; the pool has ", pool_.size(),
                                                     ": shorten the prompt or enlarge the pool"));
  }
  return absl::OkStatus();
}

std::vector<kv::BlockKey> EngineImpl::KeysOf(const SequenceSpec& spec,
                                             absl::Span<const TokenId> tokens) const {
  // Pages made elsewhere may be called ours only if they are what we would have computed.
  const bool foreign = spec.kind == SequenceKind::kDecode && !MayRecomputePrompt(spec);
  if (!spec.domain.has_value() || foreign) return {};
  const ModelInfo& model = model_.info();
  const kv::KeyContext context = {model.model_digest, model.numerics_id, model.layout.hash(), ""};
  return kv::BlockKeys(*spec.domain, context, tokens, model.layout.page_tokens());
}

absl::Status EngineImpl::Submit(SequenceSpec spec) {
  if (sequences_.contains(spec.id)) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", spec.id.value(), " is in use"));
  }
  const auto unstarted = static_cast<uint32_t>(std::count_if(
      waiting_.begin(), waiting_.end(), [](const Sequence* s) { return !s->started; }));
  if (unstarted >= options_.waiting_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unstarted, " sequences wait to start; at most ", options_.waiting_max,
                     " may: try again later"));
  }
  absl::Status status = CheckSpec(spec);
  if (!status.ok()) return status;
  const SequenceId id = spec.id;
  auto sequence = std::make_unique<Sequence>(std::move(spec), arrivals_++, model_.info());
  sequence->keys = KeysOf(sequence->spec(), sequence->tokens());
  sequence->turn =
      tenant_turns_.Enter(sequence->spec().tenant, sequence->spec().weight, sequence->remaining());
  waiting_.push_back(sequence.get());
  sequences_.emplace(id, std::move(sequence));
  return absl::OkStatus();
}

void EngineImpl::Cancel(SequenceId sequence) {
  const auto found = sequences_.find(sequence);
  if (found != sequences_.end()) found->second->cancelled = true;
}

void EngineImpl::EndOverdue(absl::Time now) {
  std::vector<Sequence*> overdue;
  for (const auto* list : {&running_, &waiting_}) {
    for (Sequence* sequence : *list) {
      if (sequence->cancelled || sequence->spec().deadline <= now) overdue.push_back(sequence);
    }
  }
  for (Sequence* sequence : overdue) {
    Finish(*sequence, sequence->cancelled ? absl::CancelledError("cancelled by the caller")
                                          : absl::DeadlineExceededError("the deadline passed"));
  }
}

void EngineImpl::Finish(Sequence& sequence, const absl::Status& status) {
  const bool trusted = status.ok() || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
  if (trusted) Publish(sequence, /*with_output=*/true);
  auto& list = sequence.running ? running_ : waiting_;
  list.erase(std::find(list.begin(), list.end(), &sequence));
  tenant_turns_.Leave(sequence.spec().tenant, sequence.spec().weight, sequence.turn,
                      sequence.stats.computed_tokens + sequence.stats.recomputed_tokens);
  // The pages are back before anybody hears of the end.
  sequence.DropPages();
  const auto node = sequences_.extract(sequence.id());
  events_.OnFinished(sequence.id(), status, sequence.stats);
}

uint32_t EngineImpl::Step() {
  last_progress_ = clock_.Now();
  EndOverdue(last_progress_);
  std::vector<BatchEntry> batch;
  // A sequence whose page is not its own any more ends alone; the others are planned again, with
  // the room it leaves.
  for (;;) {
    batch = Schedule();
    std::vector<Sequence*> stale;
    for (const BatchEntry& entry : batch) {
      if (options_.check_tags && !entry.sequence->TagsMatch()) stale.push_back(entry.sequence);
    }
    if (stale.empty()) break;
    for (Sequence* sequence : stale) {
      sequence->stats.tag_mismatch = true;
      Finish(*sequence, absl::AbortedError(
                            "a page of the sequence was given to another owner: its tag differs"));
    }
  }
  if (batch.empty()) return 0;

  uint32_t tokens = 0;
  for (const BatchEntry& entry : batch) tokens += entry.tokens;
  const absl::Status status = Compute(batch);
  if (status.ok()) {
    AfterPass(batch);
  } else {
    for (const BatchEntry& entry : batch) Finish(*entry.sequence, status);
  }
  last_progress_ = clock_.Now();
  return tokens;
}

absl::Status EngineImpl::Compute(std::vector<BatchEntry>& batch) {
  absl::Status status = SLUICE_FAULT(faults_, "engine.before_forward");
  if (!status.ok()) return status;
  int rows = 0;
  const std::vector<Segment> segments = BuildSegments(batch, &rows);
  const size_t floats = static_cast<size_t>(rows) * static_cast<size_t>(model_.info().vocabulary);
  if (logits_.size() < floats) logits_.resize(floats);

  uint32_t decodes = 0;
  uint32_t prompt_tokens = 0;
  for (const BatchEntry& entry : batch) {
    const bool decode = entry.tokens == 1 && entry.sequence->streams();
    (decode ? decodes : prompt_tokens) += entry.tokens;
  }
  LayerReporter reporter(batch, model_.info().layers, layer_group_, events_, interrupt_);
  const SequenceId alone = batch[0].sequence->id();
  interrupt_.Begin(batch.size() == 1 ? &alone : nullptr);
  const absl::Time start = clock_.Now();
  status = model_.Forward(segments, &reporter, absl::MakeSpan(logits_).subspan(0, floats));
  interrupt_.End();
  if (!status.ok()) return status;
  rates_.Add(prompt_tokens, decodes, clock_.Now() - start);
  return SLUICE_FAULT(faults_, "engine.after_forward");
}

void EngineImpl::AfterPass(const std::vector<BatchEntry>& batch) {
  for (const BatchEntry& entry : batch) {
    Sequence& sequence = *entry.sequence;
    sequence.Advance(entry.tokens);
    sequence.reported = std::max(sequence.reported, sequence.FinalBlocks(sequence.computed()));
    Publish(sequence, /*with_output=*/false);
    if (sequence.remaining() > 0) continue;
    if (sequence.samples()) {
      TakeToken(entry);
    } else {
      events_.OnPromptDone(sequence.id(), std::nullopt, request::FinishReason::kNone);
      Finish(sequence, absl::OkStatus());
    }
  }
}

void EngineImpl::TakeToken(const BatchEntry& entry) {
  Sequence& sequence = *entry.sequence;
  const auto vocabulary = static_cast<size_t>(model_.info().vocabulary);
  const auto row =
      absl::MakeConstSpan(logits_).subspan(static_cast<size_t>(entry.row) * vocabulary, vocabulary);
  const uint32_t position = sequence.output_tokens();
  const absl::StatusOr<request::SampledToken> sampled = sequence.sampler().Sample(row, position);
  if (!sampled.ok()) return Finish(sequence, sampled.status());
  sequence.AddOutput(sampled->token);
  sequence.readmitted = false;
  const request::FinishReason finish = FinishAfter(sequence, sampled->token);
  if (sequence.streams()) {
    events_.OnToken(sequence.id(), position, *sampled, finish);
  } else {
    events_.OnPromptDone(sequence.id(), *sampled, finish);
  }
  if (!sequence.streams() || finish != request::FinishReason::kNone)
    return Finish(sequence, absl::OkStatus());
  const uint32_t pages =
      model_.info().layout.PagesFor(static_cast<uint32_t>(sequence.tokens().size()));
  if (pages > pool_.size()) {
    Finish(sequence, absl::ResourceExhaustedError(absl::StrCat(
                         "the sequence has grown to ", sequence.tokens().size(), " tokens, ", pages,
                         " pages; the pool has ", pool_.size(), ": ask for fewer tokens")));
  }
}

request::FinishReason EngineImpl::FinishAfter(const Sequence& sequence, TokenId token) const {
  if (sequence.sampler().EndsSequence(token)) return request::FinishReason::kStop;
  const bool long_enough =
      sequence.output_tokens() >= sequence.spec().sampling.max_tokens ||
      sequence.tokens().size() >= static_cast<size_t>(model_.info().context_tokens);
  return long_enough ? request::FinishReason::kLength : request::FinishReason::kNone;
}

EngineLoad EngineImpl::load() const {
  EngineLoad load;
  load.running = static_cast<uint32_t>(running_.size());
  load.waiting = static_cast<uint32_t>(waiting_.size());
  for (const auto& [id, sequence] : sequences_) {
    const uint32_t prompt = sequence->prompt_tokens();
    load.prefill_tokens += prompt - std::min(prompt, sequence->computed());
    if (sequence->running && sequence->computed() >= prompt)
      load.decode_tokens += sequence->tokens().size();
  }
  load.prefill_tokens_per_s = rates_.prefill_tokens_per_s();
  load.decode_step_ms = absl::ToDoubleMilliseconds(rates_.decode_step());
  return load;
}

}  // namespace sluice::engine
