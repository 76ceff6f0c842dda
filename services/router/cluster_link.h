// The router's connection to the cache-manager: the list of workers, lookups of cached prefixes,
// and leases of the tenants' rates. Losing it costs hits, never requests: the last list stays,
// lookups and leases fail at once.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/loop.h"
#include "rpc/channel_pool.h"
#include "sluice/v1/cache.pb.h"
#include "sluice/v1/rates.pb.h"

namespace sluice::router {

// Owned by the router's loop; all callbacks run there.
class ClusterLink {
 public:
  virtual ~ClusterLink() = default;
  // Errors: UNAVAILABLE while there is no connection, DEADLINE_EXCEEDED after `timeout`.
  virtual void Lookup(v1::LookupRequest request, absl::Duration timeout,
                      absl::AnyInvocable<void(absl::StatusOr<v1::LookupReply>)> done) = 0;
  // What was used of the tenants' rates, and what may be. Errors as Lookup's.
  virtual void Lease(v1::LeaseRequest request, absl::Duration timeout,
                     absl::AnyInvocable<void(absl::StatusOr<v1::LeaseReply>)> done) = 0;
  virtual bool connected() const = 0;
};

// Connects to `address` and stays connected, with back-off. `on_view` gets every view; `fresh` is
// true for the first view of a connection, whose version starts anew. The loop is shared with calls
// that gRPC ends after the link is gone.
std::unique_ptr<ClusterLink> ConnectToManager(
    const std::string& address, const rpc::ChannelOptions& channel, std::shared_ptr<Loop> loop,
    std::function<void(const v1::WorkerView& view, bool fresh)> on_view);

}  // namespace sluice::router
