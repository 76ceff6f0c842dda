#include "cluster/fair_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::cluster {

absl::StatusOr<FairQueue::Ticket> FairQueue::Enqueue(Request request) {
  if (Full()) {
    const std::string* longest = LongerThan(request.tenant, request.weight);
    if (longest == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the queue holds ", waiting_.size(), " requests, its limit; retry later"));
    }
    PushOutLast(tenants_.at(*longest));
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

bool FairQueue::HasRoomFor(const TenantId& tenant, double weight) const {
  return !Full() || LongerThan(tenant, weight) != nullptr;
}

const std::string* FairQueue::LongerThan(const TenantId& tenant, double weight) const {
  const auto length = [](const Tenant& waiting) {
    return static_cast<double>(waiting.tickets.size()) / waiting.weight;
  };
  const std::pair<const std::string, Tenant>* longest = nullptr;
  for (const auto& entry : tenants_) {
    if (longest == nullptr || length(entry.second) > length(longest->second)) longest = &entry;
  }
  if (longest == nullptr || longest->second.tickets.empty()) return nullptr;
  const auto own = tenants_.find(tenant.value());
  const size_t waiting = own == tenants_.end() ? 0 : own->second.tickets.size();
  const bool longer = length(longest->second) > static_cast<double>(waiting + 1) / weight;
  return longer ? &longest->first : nullptr;
}

void FairQueue::PushOutLast(Tenant& tenant) {
  Ticket last = *tenant.tickets.rbegin();
  for (Ticket ticket : tenant.tickets) {
    if (waiting_.at(ticket).request.priority < waiting_.at(last).request.priority ||
        (waiting_.at(ticket).request.priority == waiting_.at(last).request.priority &&
         ticket > last)) {
      last = ticket;
    }
  }
  const auto found = waiting_.find(last);
  const auto pushed_out = std::move(found->second.request.pushed_out);
  waiting_.erase(found);
  tenant.tickets.erase(last);
  if (pushed_out) pushed_out();
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
    StopSeeking(found->second);
    started_.erase(found);
    --running_;
  }
  StartNext();
}

void FairQueue::Found(Ticket ticket) {
  const auto found = started_.find(ticket);
  if (found == started_.end()) return;
  StopSeeking(found->second);
  StartNext();
}

void FairQueue::StopSeeking(Started& started) {
  if (!std::exchange(started.seeking, false)) return;
  for (auto* counts : {&seeking_, &tenants_.at(started.tenant).seeking}) {
    const auto seeking = counts->find(started.model);
    if (--seeking->second == 0) counts->erase(seeking);
  }
}

bool FairQueue::MaySeek(const Tenant& tenant, const std::string& model) const {
  const auto seeking = seeking_.find(model);
  if (seeking == seeking_.end()) return true;
  return seeking->second < (tenant.seeking.contains(model) ? 1 : 2) * options_.seeking_max;
}

void FairQueue::StartNext() {
  if (starting_)
    return;  // a start callback that ends its request at once: the loop below goes on by itself
  starting_ = true;
  while (running_ < options_.running_max && !waiting_.empty()) {
    Tenant* best = nullptr;
    Ticket ticket = 0;
    for (auto& [name, tenant] : tenants_) {
      if (best != nullptr && tenant.finish_tag >= best->finish_tag) continue;
      const Ticket picked = PickOf(tenant);
      if (picked == 0) continue;
      best = &tenant;
      ticket = picked;
    }
    if (best == nullptr) break;
    const auto found = waiting_.find(ticket);
    Request request = std::move(found->second.request);
    waiting_.erase(found);
    best->tickets.erase(ticket);
    virtual_time_ = std::max(virtual_time_, best->finish_tag);
    const auto tokens = static_cast<double>(std::max<uint64_t>(request.tokens, 1));
    best->finish_tag += tokens / request.weight;
    ++running_;
    started_.emplace(ticket,
                     Started{request.tenant.value(), tokens, request.weight, request.model});
    ++seeking_[request.model];
    ++best->seeking[request.model];
    request.start(ticket);
  }
  if (tenants_.size() > options_.tenants_max) {
    absl::erase_if(tenants_, [&](const auto& entry) {
      const Tenant& tenant = entry.second;
      return tenant.tickets.empty() && tenant.seeking.empty() && tenant.finish_tag <= virtual_time_;
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
    if (!MaySeek(tenant, waiting.request.model)) continue;
    const int64_t priority = waiting.request.priority + (now - waiting.since) / options_.ageing;
    if (priority > best_priority) {
      best_priority = priority;
      best = ticket;
    }
  }
  return best;
}

}  // namespace sluice::cluster
