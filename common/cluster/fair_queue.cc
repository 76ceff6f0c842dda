#include "cluster/fair_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::cluster {

absl::StatusOr<FairQueue::Ticket> FairQueue::Enqueue(Request request) {
  if (waiting_.size() >= options_.waiting_max && !PushOutFor(request)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue holds ", waiting_.size(), " requests, its limit; retry later"));
  }
  const Ticket ticket = ++last_ticket_;
  // A tenant that was idle does not bring saved-up time along.
  Tenant& tenant = tenants_[request.tenant.value()];
  if (tenant.tickets.empty()) tenant.finish_tag = std::max(tenant.finish_tag, virtual_time_);
  tenant.weight = request.weight;
  tenant.tickets.insert(ticket);
  waiting_.emplace(ticket, Waiting{std::move(request), clock_.Now()});
  StartNext();
  return ticket;
}

bool FairQueue::PushOutFor(const Request& request) {
  const auto length = [](const Tenant& tenant) {
    return static_cast<double>(tenant.tickets.size()) / tenant.weight;
  };
  Tenant* longest = nullptr;
  for (auto& [name, tenant] : tenants_) {
    if (longest == nullptr || length(tenant) > length(*longest)) longest = &tenant;
  }
  if (longest == nullptr || longest->tickets.empty()) return false;
  const auto own = tenants_.find(request.tenant.value());
  const size_t waiting = own == tenants_.end() ? 0 : own->second.tickets.size();
  if (length(*longest) <= static_cast<double>(waiting + 1) / request.weight) return false;
  Ticket last = *longest->tickets.rbegin();
  for (Ticket ticket : longest->tickets) {
    if (waiting_.at(ticket).request.priority < waiting_.at(last).request.priority ||
        (waiting_.at(ticket).request.priority == waiting_.at(last).request.priority &&
         ticket > last)) {
      last = ticket;
    }
  }
  const auto found = waiting_.find(last);
  const auto pushed_out = std::move(found->second.request.pushed_out);
  waiting_.erase(found);
  longest->tickets.erase(last);
  if (pushed_out) pushed_out();
  return true;
}

void FairQueue::Finished(Ticket ticket, std::optional<uint64_t> used_tokens) {
  const auto waiting = waiting_.find(ticket);
  if (waiting != waiting_.end()) {
    tenants_[waiting->second.request.tenant.value()].tickets.erase(ticket);
    waiting_.erase(waiting);
  } else if (const auto found = started_.find(ticket); found != started_.end()) {
    const auto tenant = tenants_.find(found->second.tenant);
    if (used_tokens && tenant != tenants_.end()) {
      const double more = static_cast<double>(*used_tokens) - found->second.tokens;
      tenant->second.finish_tag += more / found->second.weight;
    }
    started_.erase(found);
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
    const auto tokens = static_cast<double>(std::max<uint64_t>(request.tokens, 1));
    best->finish_tag += tokens / request.weight;
    ++running_;
    started_.emplace(ticket, Started{request.tenant.value(), tokens, request.weight});
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
