// Divides the cluster's KV cache among tenants and leases the parts to workers.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/ids.h"

namespace sluice::cluster {

// A tenant's claim on one tier of the whole cluster.
struct KvQuota {
  uint64_t floor_bytes = 0;
  uint64_t cap_bytes = std::numeric_limits<uint64_t>::max();
  double weight = 1;  // > 0
};

// What a worker says of a tenant.
struct KvUsage {
  uint64_t active_bytes = 0;   // in use, reserved or quarantined
  uint64_t cached_bytes = 0;   // only kept for later
  uint64_t refused_bytes = 0;  // asked for and not given since the last report
  uint64_t held_bytes() const { return active_bytes + cached_bytes; }
};

// What a worker may keep for a tenant. floor <= own <= fair.
struct KvBudget {
  TenantId tenant;
  // Nobody takes these bytes from the tenant, but for what a tenant that is new to the worker
  // needs.
  uint64_t own_bytes = 0;
  // Up to here the tenant may take from those who hold more than theirs: its own bytes and its part
  // of what nobody claims.
  uint64_t fair_bytes = 0;
  // Never more than this: the worker's part of the tenant's cap.
  uint64_t limit_bytes = 0;
  // Of own_bytes, what is below the tenant's floor: nobody at all takes it.
  uint64_t floor_bytes = 0;
};

// All budgets of one worker; replaces those it had.
struct KvBudgetUpdate {
  WorkerId worker;
  uint64_t version = 0;  // grows per worker incarnation
  std::vector<KvBudget> budgets;
};

// The ledger of the cache-manager, for one tier. Rules:
//
// Own share: the tenants that hold or want something divide the capacity by weight, floors first
// (`DivideFairly`); floors of the others stay in reserve. Fair share: the same, but nobody gets
// more than he holds and wants, so that idle space is spread over those who can use it.
//
// Where: a tenant's share goes first to where its bytes are, then to where it wants more, and to
// each of these at least one large request, so that a floor smaller than that serves requests
// wherever they land. What a tenant does not want of its own share is its own, too, on the workers
// where it is, as far as others leave room: a burst need not wait for new budgets, and until it
// comes the space is lent. The own parts on a worker never exceed its capacity; what is below a
// floor fits before the rest. So what a tenant holds is its own wherever it is, as long as it holds
// no more than its floor over the cluster.
//
// Caps: the sum over workers of what a tenant may hold (limits that were sent and not yet replaced
// by an acknowledged lower one, or what is held if that is more) never grows beyond the cap. What
// a silent worker holds stays charged until `Dead`. A worker may give a tenant it has no budget for
// one large request; this is charged when reported.
//
// Workers and tenants are peers' data: unknown ones are ignored or get the rest's quota. Owned by
// the cache-manager's loop. Cost of `Divide`: O(n log n) in (worker, tenant) pairs that are not
// empty.
class KvBudgets {
 public:
  // `rest`: the quota of tenants that are not named. At most `tenants_max` tenants of a worker are
  // kept; what is reported beyond counts as one tenant without a floor.
  explicit KvBudgets(size_t tenants_max) : tenants_max_(tenants_max) {}

  // Takes effect with the next Divide. Floors beyond the capacity shrink in proportion.
  void SetQuotas(absl::flat_hash_map<TenantId, KvQuota> quotas, KvQuota rest);

  // A worker joins, or comes back as a new incarnation, which frees what the old one was charged.
  // `request_bytes`: what its largest request needs.
  void Attach(const WorkerId& worker, Incarnation incarnation, uint64_t capacity_bytes,
              uint64_t request_bytes);
  // Replaces what is known of the worker. `applied_version`: the newest update it obeys. Reports of
  // other incarnations are ignored.
  void Report(const WorkerId& worker, Incarnation incarnation, uint64_t applied_version,
              absl::flat_hash_map<TenantId, KvUsage> usage);
  // The process is known to be gone, not only silent.
  void Dead(const WorkerId& worker, Incarnation incarnation);

  // New budgets of every attached worker, in order of names.
  std::vector<KvBudgetUpdate> Divide();

  // A tenant's bytes over the cluster: held by all workers.
  KvUsage UsageOf(const TenantId& tenant) const;
  // Of every tenant that has an account.
  absl::btree_map<TenantId, KvUsage> Usage() const;
  // Charged against its cap; at least what is held.
  uint64_t ChargedBytes(const TenantId& tenant) const;

 private:
  // One tenant on one worker.
  struct Account {
    KvUsage usage;
    uint64_t applied_limit_bytes = 0;
    // Limits sent and not acknowledged, by version.
    absl::btree_map<uint64_t, uint64_t> sent_limit_bytes;
    uint64_t charged_bytes() const;
  };
  struct Worker {
    Incarnation incarnation;
    uint64_t capacity_bytes = 0;
    uint64_t request_bytes = 0;
    uint64_t version = 0;
    uint64_t applied_version = 0;
    absl::btree_map<TenantId, Account> accounts;
  };
  // While dividing: a tenant on a worker, and a tenant over the cluster.
  struct Place {
    Worker* worker;
    Account* account;
    uint64_t wanted_bytes;
    uint64_t spare_bytes;  // of its own share, not wanted yet
    KvBudget budget;
  };
  struct Claimant {
    KvQuota quota;
    std::vector<Place> places;
    uint64_t wanted_bytes = 0;
    uint64_t charged_bytes = 0;
    uint64_t entitled_bytes = 0;  // its own share
    uint64_t own_bytes = 0;       // what it wants of it
    uint64_t fair_bytes = 0;
  };
  using Claimants = absl::btree_map<TenantId, Claimant>;

  const KvQuota& QuotaOf(const TenantId& tenant) const;
  static uint64_t WantedBytes(const Worker& worker, const Account& account);
  Claimants Collect();
  void DivideCapacity(Claimants& claimants) const;
  static std::vector<uint64_t> Spread(uint64_t share_bytes, const Claimant& claimant);
  static void SpreadShares(Claimant& claimant);
  static void FitIntoWorker(uint64_t capacity_bytes, absl::Span<Place* const> places);
  static uint64_t NextLimit(const Place& place, Claimant& claimant);

  const size_t tenants_max_;
  absl::flat_hash_map<TenantId, KvQuota> quotas_;
  KvQuota rest_;
  absl::btree_map<WorkerId, Worker> workers_;
};

}  // namespace sluice::cluster
