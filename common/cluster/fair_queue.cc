#include "cluster/fair_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::cluster {

absl::StatusOr<FairQueue::Ticket> FairQueue::Enqueue(Request request) {
  if (waiting_.size() >= options_.waiting_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue holds ", waiting_.size(), " requests, its limit; retry later"));
  }
  const Ticket ticket = ++last_ticket_;
  // A tenant that was idle does not bring saved-up time along.
  Tenant& tenant = tenants_[request.tenant.value()];
  if (tenant.tickets.empty()) tenant.finish_tag = std::max(tenant.finish_tag, virtual_time_);
  tenant.tickets.insert(ticket);
  waiting_.emplace(ticket, Waiting{std::move(request), clock_.Now()});
  StartNext();
  return ticket;
}

void FairQueue::Finished(Ticket ticket) {
  const auto waiting = waiting_.find(ticket);
  if (waiting != waiting_.end()) {
    tenants_[waiting->second.request.tenant.value()].tickets.erase(ticket);
    waiting_.erase(waiting);
  } else if (started_.erase(ticket) > 0) {
    --running_;
  }
  StartNext();
}

void FairQueue::StartNext() {
  if (starting_)
    return;  // a start callback that ends its request at once: the loop below goes on by itself
  starting_ = true;
  while (running_ < options_.running_max && !waiting_.empty()) {
    Tenant* best = nullptr;
    for (auto& [name, tenant] : tenants_) {
      if (!tenant.tickets.empty() && (best == nullptr || tenant.finish_tag < best->finish_tag))
        best = &tenant;
    }
    const Ticket ticket = PickOf(*best);
    const auto found = waiting_.find(ticket);
    Request request = std::move(found->second.request);
    waiting_.erase(found);
    best->tickets.erase(ticket);
    virtual_time_ = std::max(virtual_time_, best->finish_tag);
    best->finish_tag += static_cast<double>(std::max<uint64_t>(request.tokens, 1)) / request.weight;
    ++running_;
    started_.emplace(ticket, true);
    request.start(ticket);
  }
  if (tenants_.size() > options_.tenants_max) {
    absl::erase_if(tenants_, [&](const auto& entry) {
      return entry.second.tickets.empty() && entry.second.finish_tag <= virtual_time_;
    });
  }
  starting_ = false;
}

// Highest aged priority first, then first come first served.
FairQueue::Ticket FairQueue::PickOf(const Tenant& tenant) const {
  Ticket best = 0;
  int64_t best_priority = std::numeric_limits<int64_t>::min();
  const absl::Time now = clock_.Now();
  for (Ticket ticket : tenant.tickets) {
    const Waiting& waiting = waiting_.at(ticket);
    const int64_t priority = waiting.request.priority + (now - waiting.since) / options_.ageing;
    if (priority > best_priority) {
      best_priority = priority;
      best = ticket;
    }
  }
  return best;
}

}  // namespace sluice::cluster
