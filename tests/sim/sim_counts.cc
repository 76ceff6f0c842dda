#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_cluster.h"

namespace sluice::sim {
namespace {

struct Row {
  uint64_t SimCounts::*count;
  const char* name;
};
constexpr Row kRows[] = {{&SimCounts::events, "events"},
                         {&SimCounts::requests, "requests"},
                         {&SimCounts::ok, "ok"},
                         {&SimCounts::choices, "choices"},
                         {&SimCounts::resumes, "resumes"},
                         {&SimCounts::crashes, "crashes"},
                         {&SimCounts::router_crashes, "crashes of routers"},
                         {&SimCounts::lost_pages, "pages overwritten"},
                         {&SimCounts::flips, "bits flipped"},
                         {&SimCounts::digest_failures, "digests refused"},
                         {&SimCounts::transfers, "transfers"},
                         {&SimCounts::transfers_failed, "transfers failed"},
                         {&SimCounts::lease_expiries, "leases expired"},
                         {&SimCounts::stale_messages, "stale messages"},
                         {&SimCounts::duplicate_messages, "duplicate messages"},
                         {&SimCounts::quarantines, "events with pages in quarantine"},
                         {&SimCounts::evictions, "evictions"}};

struct FlowRow {
  uint64_t FlowCounts::*count;
  const char* name;
};
constexpr FlowRow kFlowRows[] = {{&FlowCounts::split, "split"},
                                 {&FlowCounts::cached, "with a prefix hit"},
                                 {&FlowCounts::retries, "retries"},
                                 {&FlowCounts::migrations, "migrations"},
                                 {&FlowCounts::recomputed, "with recomputed tokens"},
                                 {&FlowCounts::poisoned, "poisoned"},
                                 {&FlowCounts::generations, "generations"}};

}  // namespace

void SimCounts::Add(const SimCounts& other) {
  for (const Row& row : kRows) this->*row.count += other.*row.count;
  for (const FlowRow& row : kFlowRows) flows.*row.count += other.flows.*row.count;
  drain_max = std::max(drain_max, other.drain_max);
  for (const auto& [name, count] : other.errors) errors[name] += count;
  for (const auto& [name, count] : other.points) points[name] += count;
}

std::string SimCounts::ToString() const {
  std::string out;
  for (const Row& row : kRows) absl::StrAppend(&out, this->*row.count, " ", row.name, ", ");
  for (const FlowRow& row : kFlowRows) absl::StrAppend(&out, flows.*row.count, " ", row.name, ", ");
  absl::StrAppend(&out, "drained in ", absl::FormatDuration(drain_max));
  for (const auto& [name, count] : errors) absl::StrAppend(&out, ", ", count, " ", name);
  return out;
}

}  // namespace sluice::sim
