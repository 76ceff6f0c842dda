// Who may call this router, as the operator's files say now.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "identity/authenticator.h"
#include "identity/cache_secret.h"
#include "kv/block_key.h"
#include "services/process/watched_files.h"
#include "sluice/v1/tenants.pb.h"

namespace sluice::router {

struct TenantsOptions {
  std::string tenants_file;       // empty: none
  std::string cache_secret_file;  // empty: a secret of this process
  bool no_auth = false;           // everybody is the tenant "default"
};

// Thread-safe; Refresh is for one thread. Files are read again as a whole: a request sees one
// version of all of them.
class Tenants {
 public:
  // Errors: the file, the line and the setting that is wrong. `clock` must outlive it.
  static absl::StatusOr<std::shared_ptr<Tenants>> Load(const TenantsOptions& options,
                                                       const Clock& clock);

  // Those of `file`, checked, which has no keys, for good: without files. `clock` must outlive it.
  static std::shared_ptr<const Tenants> Fixed(const v1::TenantsFile& file,
                                              identity::CacheSecret secret, const Clock& clock);

  identity::Verdict Authenticate(const identity::Credentials& credentials) const;
  // A tenant that was authenticated before, with its limits as they are now; null when it is gone.
  identity::TenantPtr Find(const TenantId& id) const;
  // Where the blocks of a request are kept.
  kv::CacheDomain DomainOf(const identity::Tenant& tenant, absl::Span<const int32_t> prompt,
                           absl::string_view salt) const;
  // Those of the file, or the one of no_auth.
  std::vector<TenantId> Ids() const;

  // Reads again what changed. Errors: as Load, once for each change; what was there stays. OK with
  // `*read` false: nothing to do.
  absl::Status Refresh(bool* read);

 private:
  struct State {
    std::optional<identity::Snapshot> snapshot;  // absent: no tenants file
    identity::CacheSecret secret;
  };
  Tenants(const TenantsOptions& options, const Clock& clock)
      : options_(options), clock_(clock), files_(clock) {}
  std::shared_ptr<const State> state() const;
  absl::Status Read(bool* read);
  absl::StatusOr<identity::Snapshot> ReadSnapshot();
  absl::StatusOr<identity::CacheSecret> ReadSecret();

  const TenantsOptions options_;
  const Clock& clock_;
  services::WatchedFiles files_;
  std::string random_;  // the secret without a file
  mutable Mutex mutex_;
  std::shared_ptr<const State> state_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::router
