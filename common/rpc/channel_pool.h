// Connections to peers: one channel per address, kept while it is used, with keepalive and quick
// reconnects.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/certificates/service_identity.h"
#include "base/mutex.h"

namespace grpc {
class Channel;
}

namespace sluice::rpc {

class Tls;

struct ChannelOptions {
  size_t message_bytes_max = size_t{64} << 20;
  // Channels kept; over it the ones that nobody uses are closed.
  size_t channels_max = 1024;
  // mTLS, to servers with one of these roles; null: plaintext.
  std::shared_ptr<const Tls> tls = nullptr;
  ServiceRoles servers = {};
};

// A channel on its own; connects when first used and again after failures, at most 1 s apart.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelOptions& options);

// Thread-safe.
class ChannelPool {
 public:
  explicit ChannelPool(const ChannelOptions& options = {}) : options_(options) {}
  std::shared_ptr<grpc::Channel> Get(absl::string_view address);
  // Forgets an address; calls that run keep their channel.
  void Drop(absl::string_view address);
  size_t size() const;

 private:
  const ChannelOptions options_;
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<grpc::Channel>> channels_
      SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::rpc
