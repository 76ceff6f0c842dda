// Who gets pages: admission, growth, preemption, and what is published for reuse.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace sluice::engine {
namespace {

// Prefix lookups for waiting sequences in one plan: a long prompt has a thousand blocks.
constexpr int kLookupsPerPlan = 8;

}  // namespace

std::vector<BatchEntry> EngineImpl::Schedule() {
  for (Sequence* sequence : waiting_) sequence->blocked = false;
  // Every round preempts, admits or blocks somebody, or finds phantoms: the rounds come to an end.
  uint64_t phantom_pages = 0;
  for (;;) {
    const StepPlan plan = PlanStep(StateForPlan(phantom_pages));
    if (!plan.preempt.empty()) {
      ApplyPreemptions(plan.preempt);
    } else if (!plan.admit.empty()) {
      ApplyAdmissions(plan.admit);
    } else if (Sequence* starved = AllocateFor(plan.run)) {
      if (kv::IsBeyondLimit(starved->refused)) {
        // No preemption of others gives its tenant room; elsewhere there may be some.
        Finish(*starved, starved->refused);
        continue;
      }
      // Another loop took the pages meanwhile, or a cached page that counts as available is kept by
      // a block below it that is in use.
      const uint64_t available = PagesAvailable();
      const uint64_t real = std::min<uint64_t>(available, starved->PagesMissing() - 1);
      phantom_pages = std::max(phantom_pages, available - real);
    } else {
      std::vector<BatchEntry> batch;
      for (const StepPlan::Run& run : plan.run) {
        running_[run.sequence]->overtaken = 0;
        running_[run.sequence]->last_turn = ++turns_;
        if (run.tokens > 1) tenant_turns_.Reach(running_[run.sequence]->turn);
        batch.push_back({running_[run.sequence], run.tokens, -1});
      }
      for (size_t index : plan.passed_over) ++running_[index]->overtaken;
      return batch;
    }
  }
}

Sequence* EngineImpl::AllocateFor(const std::vector<StepPlan::Run>& runs) {
  for (const StepPlan::Run& run : runs) {
    if (!AllocateMissing(*running_[run.sequence])) return running_[run.sequence];
  }
  return nullptr;
}

SchedulerState EngineImpl::StateForPlan(uint64_t phantom_pages) const {
  SchedulerState state;
  state.limits.step_tokens_max = options_.step_tokens_max;
  state.limits.batch_max = options_.batch_max;
  state.limits.itl_target = options_.itl_target;
  const uint64_t available = PagesAvailable();
  state.pages_available = available - std::min(available, phantom_pages);
  state.prefill_tokens_per_s = rates_.prefill_tokens_per_s();
  state.decode_step = rates_.decode_step();
  const bool budgets = pool_.has_budgets();
  for (const Sequence* sequence : running_) {
    state.running.push_back(sequence->View());
    state.running.back().borrowing = budgets && pool_.Borrows(sequence->spec().tenant);
  }
  int lookups = 0;
  for (const Sequence* sequence : waiting_) {
    SequenceView view = sequence->View();
    if (sequence->page_count() > 0) {
      // It came with its pages: what it lacks it gets like any running sequence, and waiting would
      // not free a page.
      view.pages_missing = 0;
    } else if (view.pages_missing + running_.size() > state.pages_available &&
               lookups++ < kLookupsPerPlan) {
      // Only where pages are scarce is it worth knowing how many the index holds already. Whether
      // those are counted as available too is seen at admission.
      view.pages_missing -= static_cast<uint32_t>(index_.Count(ReusableKeys(*sequence)));
    }
    // It keeps nobody from pages that it cannot have.
    if (!sequence->refused.ok()) view.overtaken = 0;
    state.waiting.push_back(view);
  }
  return state;
}

// At least one token is always computed: its logits are wanted.
absl::Span<const kv::BlockKey> EngineImpl::ReusableKeys(const Sequence& sequence) const {
  const size_t blocks = (sequence.tokens().size() - 1) / model_.info().layout.page_tokens();
  return absl::MakeConstSpan(sequence.keys).subspan(0, std::min(blocks, sequence.keys.size()));
}

void EngineImpl::ApplyPreemptions(const std::vector<size_t>& indices) {
  std::vector<Sequence*> victims;
  for (size_t index : indices) victims.push_back(running_[index]);
  for (Sequence* victim : victims) Preempt(*victim);
}

void EngineImpl::ApplyAdmissions(const std::vector<size_t>& indices) {
  std::vector<Sequence*> chosen;
  for (size_t index : indices) chosen.push_back(waiting_[index]);
  for (Sequence* sequence : chosen) {
    if (Admit(*sequence)) continue;
    sequence->blocked = true;
    // Its router knows other workers. A stream waits here for its tenant's pages or for another
    // division, unless it is beyond the limit.
    const bool leaves = !sequence->started || kv::IsBeyondLimit(sequence->refused);
    if (leaves && !sequence->refused.ok()) Finish(*sequence, sequence->refused);
  }
}

bool EngineImpl::Admit(Sequence& sequence) {
  if (sequence.page_count() == 0) {
    sequence.AdoptPrefix(index_.Find(ReusableKeys(sequence)));
    if (!AllocateMissing(sequence)) {
      sequence.DropPages();
      return false;
    }
  }
  for (Sequence* other : waiting_) {
    if (other->OvertakenBy(sequence)) ++other->overtaken;
  }
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  running_.push_back(&sequence);
  sequence.running = true;
  sequence.readmitted = sequence.stats.preemptions > 0;
  sequence.overtaken = 0;
  sequence.last_turn = ++turns_;
  Start(sequence);
  return true;
}

void EngineImpl::Start(Sequence& sequence) {
  if (!sequence.started) {
    sequence.started = true;
    if (sequence.spec().kind != SequenceKind::kDecode) {
      sequence.stats.cached_tokens = std::min(sequence.computed(), sequence.prompt_tokens());
    }
    events_.OnStarted(sequence.id(), sequence.stats.cached_tokens);
  }
  const uint32_t final_blocks = sequence.FinalBlocks(sequence.computed());
  ReportPages(sequence, final_blocks, 0, model_.info().layers, events_);
  sequence.reported = std::max(sequence.reported, final_blocks);
  Publish(sequence, /*with_output=*/false);
}

void EngineImpl::Preempt(Sequence& sequence) {
  ++sequence.stats.preemptions;
  if (sequence.spec().kind == SequenceKind::kDecode && !MayRecomputePrompt(sequence.spec())) {
    Finish(sequence, absl::AbortedError("preempted; the prompt cannot be recomputed here"));
    return;
  }
  // Published pages can be evicted like free ones, but as long as nobody needs them they need not
  // be computed again.
  Publish(sequence, /*with_output=*/true);
  sequence.DropPages();
  sequence.running = false;
  sequence.overtaken = 0;
  sequence.blocked = true;
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const Sequence* other) {
    return other->arrival() > sequence.arrival();
  });
  waiting_.insert(place, &sequence);
}

bool EngineImpl::AllocateMissing(Sequence& sequence) {
  const uint32_t missing = sequence.PagesMissing();
  if (missing == 0) return true;
  // Asked first, because an allocation that fails may have evicted the cache for nothing.
  const TenantId& tenant = sequence.spec().tenant;
  sequence.refused = absl::OkStatus();
  if (missing > PagesAvailable()) {
    pool_.NoteRefused(tenant, missing);
    return false;
  }
  sequence.refused = pool_.CheckRoom(tenant, missing, 0);
  if (!sequence.refused.ok()) return false;
  absl::StatusOr<std::vector<kv::PageLease>> pages =
      pool_.Allocate(missing, Id128{0, sequence.id().value()}, tenant);
  if (!pages.ok()) {
    if (kv::IsBeyondLimit(pages.status())) sequence.refused = pages.status();
    return false;
  }
  sequence.AddPages(*std::move(pages));
  return true;
}

void EngineImpl::Publish(Sequence& sequence, bool with_output) {
  const uint32_t full = sequence.FullBlocks();
  if (sequence.keys.empty() && !(with_output && sequence.spec().domain.has_value())) return;
  if (with_output && full > sequence.keys.size()) {
    sequence.keys = KeysOf(sequence.spec(),
                           absl::MakeConstSpan(sequence.tokens()).subspan(0, sequence.computed()));
  }
  const auto end = std::min(full, static_cast<uint32_t>(sequence.keys.size()));
  if (sequence.published >= end) return;
  AdoptPublished(sequence, end);
  const uint32_t public_blocks =
      sequence.spec().domain->public_tokens() / model_.info().layout.page_tokens();
  const TenantId everybody{std::string(kv::kPublicTenant)};
  for (uint32_t block = sequence.published; block < end; ++block) {
    const kv::BlockKey parent = block == 0 ? kv::BlockKey() : sequence.keys[block - 1];
    index_.Insert(sequence.keys[block], parent, sequence.page(block),
                  block < public_blocks ? everybody : sequence.spec().tenant);
  }
  sequence.published = end;
}

// A sequence with the same prompt was faster: its pages hold the same bytes. Going on with them
// frees our own, and keeps this invariant: who holds a published block holds the published blocks
// above it.
void EngineImpl::AdoptPublished(Sequence& sequence, uint32_t end) {
  const auto fresh =
      absl::MakeConstSpan(sequence.keys).subspan(sequence.published, end - sequence.published);
  if (index_.Count(fresh) == 0) return;
  for (kv::PageLease& page : index_.Find(fresh))
    sequence.ReplacePage(sequence.published++, std::move(page));
}

uint64_t EngineImpl::PagesAvailable() const {
  const kv::PageCounts counts = pool_.counts();
  return counts.free + counts.cached;
}

}  // namespace sluice::engine
