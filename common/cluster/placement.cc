#include "cluster/placement.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace sluice::cluster {
namespace {

struct Candidate {
  const WorkerState* prefill = nullptr;  // null: local
  const WorkerState* decode = nullptr;
  double compute_ms = 0;
  double queue_ms = 0;
  double transfer_ms = 0;
  double decode_ms = 0;
  double pressure_ms = 0;
  uint32_t cached_tokens = 0;
  double warmth = 1;
  // A worker that came back costs up to ten times as much, so that it gets the smaller share.
  double total() const {
    return (compute_ms + queue_ms + transfer_ms + decode_ms + pressure_ms) / warmth;
  }
};

class Placer {
 public:
  Placer(const PlacementOptions& options, const PlacementQuery& query,
         absl::Span<const WorkerState> workers)
      : options_(options), query_(query), workers_(workers) {}

  std::vector<Candidate> Candidates(bool ignore_breakers) const {
    std::vector<Candidate> all;
    for (const WorkerState& decode : workers_) {
      if (!decode.CanDecode() || !WhyNot(decode, query_.decode_numerics, ignore_breakers).empty())
        continue;
      if (options_.split != SplitMode::kAlways && decode.CanPrefill() && MayRunLocally(decode)) {
        all.push_back(Cost(nullptr, decode));
      }
      if (options_.split == SplitMode::kNever) continue;
      for (const WorkerState& prefill : workers_) {
        if (&prefill == &decode || !prefill.CanPrefill() ||
            prefill.description.layout_hash != decode.description.layout_hash ||
            !WhyNot(prefill, query_.prefill_numerics, ignore_breakers).empty() ||
            (!ignore_breakers && IsBroken(prefill, decode))) {
          continue;
        }
        all.push_back(Cost(&prefill, decode));
      }
    }
    return all;
  }

  // Empty when the worker may be used.
  std::string WhyNot(const WorkerState& worker, Id128 numerics, bool ignore_breakers) const {
    if (!query_.model.empty() && worker.description.model != query_.model)
      return "serves another model";
    if (worker.draining) return "draining";
    if (!worker.ready) return "not ready";
    if (worker.breaker_open && !ignore_breakers) return "breaker open after failures";
    const auto& excluded = query_.excluded;
    if (std::find(excluded.begin(), excluded.end(), worker.description.id) != excluded.end()) {
      return "failed this request";
    }
    if (!numerics.IsZero() && worker.description.numerics_id != numerics)
      return "other numerics than the stream began with";
    return "";
  }

  // Which role is missing, or that no two fit, with every worker's reason.
  std::string WhyNobody() const {
    if (workers_.empty()) return "no worker is known";
    const bool local = options_.split != SplitMode::kAlways;
    const std::string prefill_missing = WhyNoneCan(
        "prefill", [&](const WorkerState& w) { return w.CanPrefill(); }, query_.prefill_numerics);
    const std::string decode_missing = WhyNoneCan(
        local && options_.split == SplitMode::kNever ? "combined" : "decode",
        [&](const WorkerState& w) {
          return w.CanDecode() && (options_.split != SplitMode::kNever || w.CanPrefill());
        },
        query_.decode_numerics);
    if (!decode_missing.empty()) return decode_missing;
    if (!prefill_missing.empty()) return prefill_missing;
    std::string layouts;
    for (const WorkerState& worker : workers_) {
      if (!WhyNot(worker, {}, true).empty()) continue;
      absl::StrAppend(&layouts, "; ", worker.description.id.value(), ": ",
                      worker.description.layout);
    }
    return absl::StrCat(
        "no prefill and decode worker fit together: no partner of equal page layout", layouts);
  }

 private:
  template <typename Can>
  std::string WhyNoneCan(absl::string_view role, Can can, Id128 numerics) const {
    std::string reasons;
    for (const WorkerState& worker : workers_) {
      if (!can(worker)) continue;
      const std::string why = WhyNot(worker, numerics, true);
      if (why.empty()) return "";
      absl::StrAppend(&reasons, reasons.empty() ? " (" : ", ", worker.description.id.value(), ": ",
                      why);
    }
    return absl::StrCat("no ", role, " worker is ready",
                        reasons.empty() ? "" : absl::StrCat(reasons, ")"));
  }

  bool IsBroken(const WorkerState& prefill, const WorkerState& decode) const {
    const auto& pairs = query_.broken_pairs;
    return std::find(pairs.begin(), pairs.end(),
                     WorkerPair(prefill.description.id, decode.description.id)) != pairs.end();
  }

  double MoveBytesPerS(const WorkerState& prefill, const WorkerState& decode) const {
    const WorkerPair pair(prefill.description.id, decode.description.id);
    for (const MoveRate& rate : query_.move_rates) {
      if (rate.pair == pair) return rate.bytes_per_s;
    }
    return options_.transfer_bytes_per_s;
  }

  // A stream that began split continues byte for byte on one worker only if that one has both
  // numerics.
  bool MayRunLocally(const WorkerState& worker) const {
    return query_.prefill_numerics.IsZero() ||
           worker.description.numerics_id == query_.prefill_numerics;
  }

  uint32_t CachedTokens(const WorkerState& worker) const {
    for (const WorkerHit& hit : query_.hits) {
      if (hit.worker == worker.description.id &&
          hit.incarnation == worker.description.incarnation) {
        // At least one token is always computed.
        const uint64_t tokens = uint64_t{hit.blocks} * worker.description.page_tokens;
        return static_cast<uint32_t>(std::min<uint64_t>(tokens, query_.prompt_tokens - 1));
      }
    }
    return 0;
  }

  Candidate Cost(const WorkerState* prefill, const WorkerState& decode) const {
    Candidate c;
    c.prefill = prefill;
    c.decode = &decode;
    c.warmth = prefill == nullptr ? decode.warmth : std::min(decode.warmth, prefill->warmth);
    const WorkerState& computer = prefill == nullptr ? decode : *prefill;
    const double rate = computer.load.prefill_tokens_per_s > 0
                            ? computer.load.prefill_tokens_per_s
                            : options_.default_prefill_tokens_per_s;
    c.cached_tokens = CachedTokens(computer);
    c.compute_ms = 1e3 * (query_.prompt_tokens - c.cached_tokens) / rate;
    // The report and our own book of sent work overlap: the larger of the two is nearer the truth
    // than their sum.
    c.queue_ms =
        1e3 *
        static_cast<double>(std::max(computer.load.prefill_tokens, computer.sent_prefill_tokens)) /
        rate;
    if (prefill != nullptr) {
      const double moved =
          query_.prompt_tokens - std::min(CachedTokens(decode), query_.prompt_tokens);
      c.transfer_ms = 1e3 * moved * static_cast<double>(decode.description.kv_bytes_per_token) /
                      MoveBytesPerS(*prefill, decode);
    }
    const double step_ms = decode.load.decode_step_ms > 0 ? decode.load.decode_step_ms
                                                          : options_.default_decode_step_ms;
    const double running = std::max(decode.load.running, decode.sent_requests);
    // Every running stream makes the others' steps a little longer; a local prompt delays them all.
    c.decode_ms = step_ms * running + 1e3 * query_.emitted_tokens / rate;
    if (prefill == nullptr) c.decode_ms += c.compute_ms * std::min(running, 4.0);
    c.pressure_ms = PressureMs(decode);
    return c;
  }

  // Grows steeply as the pool fills, so that a nearly full worker is taken only when all are.
  double PressureMs(const WorkerState& decode) const {
    if (decode.load.pages_total == 0 || decode.description.page_tokens == 0) return 0;
    const double wanted =
        static_cast<double>(query_.prompt_tokens + query_.emitted_tokens + query_.output_tokens) /
        decode.description.page_tokens;
    const double room = static_cast<double>(decode.load.pages_free + decode.load.pages_cached);
    if (wanted > room) return 60e3;
    const double used = 1 - (room - wanted) / static_cast<double>(decode.load.pages_total);
    return used > 0.8 ? 2e3 * (used - 0.8) : 0;
  }

  const PlacementOptions& options_;
  const PlacementQuery& query_;
  const absl::Span<const WorkerState> workers_;
};

// Under kAuto: short uncached prompts stay local when a local worker exists, whatever the small
// differences in cost.
void KeepShortPromptsLocal(const PlacementOptions& options, const PlacementQuery& query,
                           std::vector<Candidate>* all) {
  if (options.split != SplitMode::kAuto) return;
  const auto short_local = [&](const Candidate& c) {
    return c.prefill == nullptr && query.prompt_tokens - c.cached_tokens < options.local_tokens_max;
  };
  if (std::none_of(all->begin(), all->end(), short_local)) return;
  std::erase_if(*all, [&](const Candidate& c) { return !short_local(c); });
}

bool IsAffine(const PlacementQuery& query, const Candidate& c) {
  if (query.affine_decode.value().empty() || c.decode->description.id != query.affine_decode)
    return false;
  return c.prefill == nullptr ? query.affine_prefill.value().empty()
                              : c.prefill->description.id == query.affine_prefill;
}

}  // namespace

absl::StatusOr<PlacementDecision> Place(const PlacementOptions& options,
                                        const PlacementQuery& query,
                                        absl::Span<const WorkerState> workers,
                                        RandomSource& random) {
  const Placer placer(options, query, workers);
  std::vector<Candidate> all = placer.Candidates(false);
  if (all.empty()) all = placer.Candidates(true);
  if (all.empty()) {
    return absl::UnavailableError(placer.WhyNobody());
  }
  KeepShortPromptsLocal(options, query, &all);
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.total() < b.total(); });

  const double best = all.front().total();
  const Candidate* chosen = nullptr;
  for (const Candidate& c : all) {
    if (IsAffine(query, c) && c.total() <= best * options.affinity_slack + 1) chosen = &c;
  }
  if (chosen == nullptr) {
    size_t near = 1;
    while (near < all.size() && all[near].total() <= best * options.near_best) ++near;
    chosen = &all[random.Below(near)];
  }
  PlacementDecision decision;
  decision.split = chosen->prefill != nullptr;
  if (decision.split) decision.prefill = chosen->prefill->description.id;
  decision.decode = chosen->decode->description.id;
  decision.predicted_cached_tokens = chosen->cached_tokens;
  const WorkerState& computer = decision.split ? *chosen->prefill : *chosen->decode;
  if (computer.load.prefill_tokens_per_s > 0)
    decision.first_token_ms = chosen->compute_ms + chosen->queue_ms;
  return decision;
}

std::string WhyNobodyServes(const PlacementOptions& options,
                            absl::Span<const WorkerState> workers) {
  PlacementQuery any;
  any.prompt_tokens = 1;
  const Placer placer(options, any, workers);
  return placer.Candidates(true).empty() ? placer.WhyNobody() : "";
}

std::optional<LargestFit> LargestFitOf(absl::Span<const WorkerState> workers,
                                       absl::string_view model) {
  LargestFit fit;
  for (const WorkerState& worker : workers) {
    if (worker.description.model != model || worker.load.pages_total == 0) continue;
    // The first token takes two slots in formats with a sink row.
    const uint64_t tokens = worker.load.pages_total * worker.description.page_tokens - 1;
    if (worker.CanPrefill()) fit.prompt_tokens = std::max(fit.prompt_tokens, tokens);
    if (worker.CanDecode()) fit.sequence_tokens = std::max(fit.sequence_tokens, tokens);
  }
  if (fit.prompt_tokens == 0 || fit.sequence_tokens == 0) return std::nullopt;
  return fit;
}

}  // namespace sluice::cluster
