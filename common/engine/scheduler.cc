#include "engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace sluice::engine {
namespace {

// Smaller is better: the order in which running sequences get pages, and the reverse of the order
// of preemption.
auto PageRank(const SequenceView& view) {
  return std::make_tuple(view.borrowing, -int64_t{view.priority}, view.arrival);
}

template <typename Rank>
std::vector<size_t> SortedBy(const std::vector<SequenceView>& views, Rank rank) {
  std::vector<size_t> order(views.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return rank(views[a]) < rank(views[b]); });
  return order;
}

// Pages for the sequences that run already.
struct PageGrants {
  std::vector<bool> has_pages;  // by index into running
  std::vector<size_t> preempt;
  uint64_t available = 0;
  bool anyone_lacks = false;
};

// Victims for `missing` pages among order[from..], worst first; empty if all of them together would
// not do.
std::vector<size_t> Victims(const SchedulerState& state, const std::vector<size_t>& order,
                            size_t from, uint64_t missing) {
  std::vector<size_t> victims;
  uint64_t freed = 0;
  for (size_t i = order.size(); i-- > from && freed < missing;) {
    const SequenceView& view = state.running[order[i]];
    if (view.readmitted || view.pages_freeable == 0) continue;
    victims.push_back(order[i]);
    freed += view.pages_freeable;
  }
  if (freed < missing) victims.clear();
  return victims;
}

PageGrants GrantPages(const SchedulerState& state) {
  PageGrants grants;
  grants.has_pages.assign(state.running.size(), false);
  grants.available = state.pages_available;
  const std::vector<size_t> order = SortedBy(state.running, PageRank);
  for (size_t i = 0; i < order.size(); ++i) {
    const SequenceView& view = state.running[order[i]];
    if (view.pages_missing <= grants.available) {
      grants.available -= view.pages_missing;
      grants.has_pages[order[i]] = true;
      continue;
    }
    grants.preempt = Victims(state, order, i + 1, view.pages_missing - grants.available);
    if (!grants.preempt.empty()) return grants;
    grants.anyone_lacks = true;
  }
  return grants;
}

// The order in which sequences get a place in the batch and tokens.
auto TurnRank(const SequenceView& view) {
  return std::make_tuple(-int64_t{view.priority}, view.arrival);
}

// Indices of the running sequences of this step: those that have their pages, as many as fit.
std::vector<size_t> Batch(const SchedulerState& state, const PageGrants& grants, size_t batch_max) {
  std::vector<size_t> batch;
  for (size_t i : SortedBy(state.running, TurnRank)) {
    if (grants.has_pages[i] && batch.size() < batch_max) batch.push_back(i);
  }
  return batch;
}

// One who wants prompt tokens: a running sequence or a waiting one.
struct Claim {
  const SequenceView* view;
  size_t index;
  bool waiting;
};

std::vector<Claim> ClaimsInOrder(const SchedulerState& state, const std::vector<size_t>& batch) {
  std::vector<Claim> claims;
  for (size_t i : batch) {
    if (state.running[i].remaining > 1) claims.push_back({&state.running[i], i, false});
  }
  for (size_t i = 0; i < state.waiting.size(); ++i) {
    claims.push_back({&state.waiting[i], i, true});
  }
  const auto rank = [&](const Claim& claim) {
    const bool aged = claim.waiting && claim.view->overtaken >= state.limits.overtaken_max;
    return std::make_pair(!aged, TurnRank(*claim.view));
  };
  std::sort(claims.begin(), claims.end(),
            [&](const Claim& a, const Claim& b) { return rank(a) < rank(b); });
  return claims;
}

}  // namespace

uint32_t ChunkTokens(const SchedulerState& state) {
  const uint32_t most = state.limits.step_tokens_max;
  if (state.prefill_tokens_per_s <= 0) return most;
  const double room = absl::ToDoubleSeconds(state.limits.itl_target - state.decode_step);
  const double tokens =
      std::clamp(room * state.prefill_tokens_per_s, 0.0, static_cast<double>(most));
  return std::min(most, std::max(static_cast<uint32_t>(tokens), state.limits.chunk_tokens_min));
}

StepPlan PlanStep(const SchedulerState& state) {
  StepPlan plan;
  PageGrants grants = GrantPages(state);
  plan.preempt = std::move(grants.preempt);
  if (!plan.preempt.empty()) return plan;

  const size_t batch_max = std::min(state.limits.batch_max, state.limits.step_tokens_max);
  const std::vector<size_t> batch = Batch(state, grants, batch_max);
  uint32_t budget = state.limits.step_tokens_max;
  bool streams_run = false;
  for (size_t i : batch) {
    const SequenceView& view = state.running[i];
    if (view.remaining > 1) continue;
    plan.run.push_back({i, 1});
    --budget;
    streams_run = streams_run || view.stream;
  }
  if (streams_run) budget = std::min(budget, ChunkTokens(state));

  uint64_t growing = static_cast<uint64_t>(std::count_if(
      state.running.begin(), state.running.end(), [](const SequenceView& v) { return v.stream; }));
  bool may_take_pages = !grants.anyone_lacks;
  for (const Claim& claim : ClaimsInOrder(state, batch)) {
    const SequenceView& view = *claim.view;
    const uint32_t tokens = view.remaining > 1 ? std::min(view.remaining, budget) : 0;
    if (!claim.waiting) {
      if (tokens > 0) plan.run.push_back({claim.index, tokens});
      budget -= tokens;
      continue;
    }
    if (view.pages_missing > 0) {
      // Nothing grows where nothing runs: a sequence that fills the pool must still be able to
      // start.
      const bool has_room =
          may_take_pages && !view.blocked && view.pages_missing + growing <= grants.available;
      const bool aged = view.overtaken >= state.limits.overtaken_max;
      if (!has_room && aged) may_take_pages = false;
      const bool has_turn = (tokens > 0 || view.remaining == 1) &&
                            (aged || state.running.size() + plan.admit.size() < batch_max);
      if (!has_room || !has_turn) continue;
    }
    plan.admit.push_back(claim.index);
    grants.available -= view.pages_missing;
    growing += view.stream ? 1 : 0;
    budget -= tokens;
  }
  return plan;
}

}  // namespace sluice::engine
