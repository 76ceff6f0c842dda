// What to compute in the next step, and who gets pages: pure functions of plain values, so that
// every decision can be tabled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace sluice::engine {

// What the scheduler knows of one sequence.
struct SequenceView {
  // Order of submission; kept over preemptions, so an old stream stays old.
  uint64_t arrival = 0;
  // Higher goes first.
  int32_t priority = 0;
  // The smaller, the earlier its prompt's turn among those of its priority (TenantTurns); equal: by
  // arrival.
  double turn = 0;
  // Tokens known but not computed, at least 1. 1 is a decode: one token, one row of logits.
  uint32_t remaining = 1;
  // Pages to allocate before all of `remaining` can be computed. Waiting: 0 means that it came with
  // its pages.
  uint32_t pages_missing = 0;
  // Pages that come back to the pool if it is preempted; 0: preempting it is useless or not
  // allowed.
  uint32_t pages_freeable = 0;
  // A stream whose reader waits for each token and which goes on growing.
  bool stream = true;
  // Its tenant is over its own share.
  bool borrowing = false;
  // Running: was readmitted after a preemption and has made no progress since.
  bool readmitted = false;
  // Waiting: not to be admitted in this step (an attempt failed, or it was preempted in this step).
  bool blocked = false;
  // Waiting: how many less important ones, or with a later turn, were admitted meanwhile. Running:
  // how many steps passed it over since its last one.
  uint32_t overtaken = 0;
  // Running: grows from turn to turn, over all sequences; the admission counts as a turn.
  uint64_t last_turn = 0;
};

struct SchedulerLimits {
  uint32_t step_tokens_max = 512;
  uint32_t batch_max = 64;  // sequences in one step; never more than step_tokens_max
  absl::Duration itl_target = absl::Milliseconds(50);
  // Prompts advance by at least this much in a step that has room, even where that misses
  // itl_target.
  uint32_t chunk_tokens_min = 16;
  // After this many admissions past it, a waiting sequence is next, whatever its priority and
  // however many pages it lacks. After this many steps past it, a running one goes before higher
  // priorities.
  uint32_t overtaken_max = 16;
};

struct SchedulerState {
  SchedulerLimits limits;
  std::vector<SequenceView> running;
  std::vector<SequenceView> waiting;
  // Free pages and pages that may be evicted at once.
  uint64_t pages_available = 0;
  // Measured; 0: not yet.
  double prefill_tokens_per_s = 0;
  absl::Duration decode_step;
};

struct StepPlan {
  struct Run {
    size_t sequence = 0;  // index into running
    uint32_t tokens = 0;
  };
  // Indices into running. When not empty, nothing else is planned: free their pages, then plan
  // again.
  std::vector<size_t> preempt;
  // Indices into waiting, in order. When not empty: admit what can be, then plan again.
  std::vector<size_t> admit;
  // Decodes first, then prompt chunks: the order in which last_turn grows. Pages for them are
  // missing at most as pages_missing says, and are available.
  std::vector<Run> run;
  // Indices into running: whom this step passes over (see SequenceView::overtaken). Empty when
  // nothing runs. A prompt behind another that runs is not passed over: it stands in line.
  std::vector<size_t> passed_over;
};

// Rules:
//
// Batch: running sequences that have their pages. When there are more decodes than places, they
// take turns: higher priorities first, then those whose last turn is longest ago. Those passed over
// overtaken_max times go first, in a quarter of the places (at least one), so that lower priorities
// advance and higher ones keep most of the batch. The first prompt in line takes its turn like a
// decode; the other prompts get the places that are left, so that none holds a place without a
// token. Prompts share what is left of step_tokens_max, in the order of `turn` within a priority;
// while streams run, no more prompt tokens than fit into itl_target beside a decode step.
//
// Admission: a waiting sequence needs a place in the batch, all its pages, and a page of growth for
// every running stream. One that lacks pages is passed over, up to overtaken_max times; then nobody
// takes pages before it. While a running sequence lacks a page, nobody takes pages. A sequence that
// came with its pages is admitted at once: it holds what others may need, and only running
// sequences give pages back.
//
// Preemption: a running sequence that lacks pages takes them from those ranked below it: borrowers
// first, then lower priority, then the youngest; never from one that was readmitted and has made no
// progress. If that does not suffice it waits, holding its pages.
//
// The best-ranked sequence is preempted by nobody, and a readmitted one holds all pages for its
// next token; both get their turns; so some sequence always advances, and no two can preempt each
// other for ever.
//
// Cost: a few sorts of the sequences.
StepPlan PlanStep(const SchedulerState& state);

// The most prompt tokens that a step with running streams may compute. At least chunk_tokens_min;
// at most step_tokens_max.
uint32_t ChunkTokens(const SchedulerState& state);

}  // namespace sluice::engine
