// Whose request goes next: weighted fair queueing over tenants in tokens, priorities inside a
// tenant, ageing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"

namespace sluice::cluster {

struct FairQueueOptions {
  size_t waiting_max = 1024;  // over all tenants
  size_t running_max = 256;   // requests let through and not finished
  // Of each model: let through and still without a worker. They ask the workers for room again and
  // again, so a few of them keep workers busy and more would only take from them. A tenant that has
  // none among them adds one, up to twice as many in all.
  size_t seeking_max = 8;
  size_t tenants_max = 100000;  // tenants remembered
  // Waiting this long raises a request by one priority inside its tenant.
  absl::Duration ageing = absl::Seconds(5);
};

// Start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as the cost: over any interval in
// which tenants have requests waiting, each gets service in proportion to its weight, to within one
// request. Owned by the router's loop.
class FairQueue {
 public:
  using Ticket = uint64_t;
  FairQueue(const Clock& clock, const FairQueueOptions& options)
      : clock_(clock), options_(options) {}

  struct Request {
    TenantId tenant;
    double weight = 1;  // of the tenant; > 0
    int32_t priority = 0;
    uint64_t tokens = 0;  // uncached prompt and expected output, weighted
    std::string model;
    // Runs when it is the request's turn. Called from Enqueue, Found or Finished.
    std::function<void(Ticket)> start;
    // Runs instead when the request has to leave the full queue for that of another tenant. Called
    // from Enqueue, at most once; the ticket is unknown by then.
    std::function<void()> pushed_out = nullptr;
  };
  // When waiting_max is reached, a tenant with less waiting by its weight than another pushes out
  // the last request of lowest priority of the one with most, so that no tenant can fill the queue
  // for the others. Errors: RESOURCE_EXHAUSTED when it is itself the one with most.
  absl::StatusOr<Ticket> Enqueue(Request request);
  // A started request has its worker, or none is there to be waited for. Idempotent; unknown
  // tickets are ignored.
  void Found(Ticket ticket);
  // Leaves the queue, or ends a started request. Exactly once per ticket; unknown tickets are
  // ignored. `used_tokens`, if known, replace for the tenant's further turns those that the request
  // was expected to cost.
  void Finished(Ticket ticket, std::optional<uint64_t> used_tokens = std::nullopt);
  // False when Enqueue would refuse a request of this tenant. Cost: a look at every tenant, if the
  // queue is full.
  bool HasRoomFor(const TenantId& tenant, double weight) const;
  // waiting_max is reached.
  bool Full() const { return waiting_.size() >= options_.waiting_max; }
  // True when a request that comes now would have to wait for others to end, or for more than a
  // moment.
  bool Busy() const {
    return running_ >= options_.running_max || waiting_.size() >= options_.seeking_max;
  }

  size_t waiting() const { return waiting_.size(); }
  size_t running() const { return running_; }

 private:
  struct Waiting {
    Request request;
    absl::Time since;
  };
  struct Tenant {
    double finish_tag = 0;  // virtual time at which its last started request is served
    double weight = 1;      // of its last request
    absl::btree_set<Ticket> tickets;
    absl::flat_hash_map<std::string, size_t> seeking;  // by model; no zeros
  };
  struct Started {
    std::string tenant;
    double tokens;
    double weight;
    std::string model;
    bool seeking = true;
  };
  void StartNext();
  // Who has most waiting by its weight; null if nobody has so much more than this tenant that a
  // request of it would go before theirs.
  const std::string* LongerThan(const TenantId& tenant, double weight) const;
  void PushOutLast(Tenant& tenant);
  // 0: all that wait are of models that must not seek.
  Ticket PickOf(const Tenant& tenant) const;
  bool MaySeek(const Tenant& tenant, const std::string& model) const;
  void StopSeeking(Started& started);

  const Clock& clock_;
  const FairQueueOptions options_;
  double virtual_time_ = 0;
  Ticket last_ticket_ = 0;
  size_t running_ = 0;
  absl::flat_hash_map<std::string, size_t> seeking_;  // by model; no zeros
  bool starting_ = false;
  absl::flat_hash_map<Ticket, Waiting> waiting_;
  absl::flat_hash_map<Ticket, Started> started_;
  // Tenants in order of name, so that equal tags are served in a fixed order.
  absl::btree_map<std::string, Tenant> tenants_;
};

}  // namespace sluice::cluster
