#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
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

// Passed over so often that it goes before higher priorities.
bool Aged(const SchedulerState& state, const SequenceView& view) {
  return view.overtaken >= state.limits.overtaken_max;
}

// One who wants prompt tokens: a running sequence or a waiting one.
struct Claim {
  const SequenceView* view;
  size_t index;
  bool waiting;
};

std::vector<Claim> ClaimsInOrder(const SchedulerState& state, const std::vector<bool>& has_pages) {
  std::vector<Claim> claims;
  for (size_t i = 0; i < state.running.size(); ++i) {
    const SequenceView& view = state.running[i];
    if (view.remaining > 1 && has_pages[i]) claims.push_back({&view, i, false});
  }
  for (size_t i = 0; i < state.waiting.size(); ++i) {
    claims.push_back({&state.waiting[i], i, true});
  }
  const auto rank = [&](const Claim& claim) {
    const bool aged = Aged(state, *claim.view);
    return std::make_tuple(!aged, aged ? 0 : -int64_t{claim.view->priority}, claim.view->turn,
                           claim.view->arrival);
  };
  std::sort(claims.begin(), claims.end(),
            [&](const Claim& a, const Claim& b) { return rank(a) < rank(b); });
  return claims;
}

// Indices of the running sequences that have a turn: decodes, and the first prompt of `claims`.
// Prompts behind it are left out.
std::vector<size_t> Turns(const SchedulerState& state, const std::vector<bool>& has_pages,
                          const std::vector<Claim>& claims, size_t batch_max) {
  const auto first_prompt =
      std::find_if(claims.begin(), claims.end(), [](const Claim& claim) { return !claim.waiting; });
  const auto takes_turns = [&](size_t i) {
    if (!has_pages[i]) return false;
    return state.running[i].remaining == 1 || i == first_prompt->index;
  };
  std::vector<size_t> turns;
  std::vector<bool> has_turn(state.running.size(), false);
  const auto take = [&](size_t i) {
    turns.push_back(i);
    has_turn[i] = true;
  };
  const size_t aged_max = std::max<size_t>(1, batch_max / 4);
  for (size_t i : SortedBy(state.running, [](const SequenceView& view) {
         return std::make_tuple(view.last_turn, view.arrival);
       })) {
    if (turns.size() == aged_max) break;
    if (takes_turns(i) && Aged(state, state.running[i])) take(i);
  }
  for (size_t i : SortedBy(state.running, [](const SequenceView& view) {
         return std::make_tuple(-int64_t{view.priority}, view.last_turn, view.arrival);
       })) {
    if (turns.size() == batch_max) break;
    if (takes_turns(i) && !has_turn[i]) take(i);
  }
  return turns;
}

std::vector<size_t> PassedOver(const SchedulerState& state, const std::vector<StepPlan::Run>& run) {
  std::vector<size_t> passed_over;
  if (run.empty()) return passed_over;
  std::vector<bool> runs(state.running.size(), false);
  const auto place = [](const SequenceView& view) {
    return std::make_pair(view.turn, view.arrival);
  };
  auto first_prompt = std::make_pair(std::numeric_limits<double>::infinity(), uint64_t{0});
  for (const StepPlan::Run& entry : run) {
    const SequenceView& view = state.running[entry.sequence];
    runs[entry.sequence] = true;
    if (view.remaining > 1) first_prompt = std::min(first_prompt, place(view));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const SequenceView& view = state.running[i];
    const bool in_line = view.remaining > 1 && place(view) > first_prompt;
    if (!runs[i] && !in_line) passed_over.push_back(i);
  }
  return passed_over;
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
  const std::vector<Claim> claims = ClaimsInOrder(state, grants.has_pages);
  uint32_t budget = state.limits.step_tokens_max;
  bool streams_run = false;
  for (size_t i : Turns(state, grants.has_pages, claims, batch_max)) {
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
  for (const Claim& claim : claims) {
    const SequenceView& view = *claim.view;
    const uint32_t tokens = view.remaining > 1 ? std::min(view.remaining, budget) : 0;
    if (!claim.waiting) {
      if (tokens == 0 || plan.run.size() == batch_max) continue;
      plan.run.push_back({claim.index, tokens});
      budget -= tokens;
      continue;
    }
    if (view.pages_missing > 0) {
      // Nothing grows where nothing runs: a sequence that fills the pool must still be able to
      // start.
      const bool has_room =
          may_take_pages && !view.blocked && view.pages_missing + growing <= grants.available;
      const bool aged = Aged(state, view);
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
  plan.passed_over = PassedOver(state, plan.run);
  return plan;
}

}  // namespace sluice::engine
