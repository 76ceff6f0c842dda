// A worker's connection to the cache-manager: registration, heartbeats, block events up, budgets of
// tenants down. Without a manager the worker serves on.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/loop.h"
#include "kv/page_pool.h"
#include "kv/prefix_index.h"
#include "rpc/channel_pool.h"
#include "sluice/v1/cache.pb.h"

namespace sluice::services {

struct ManagerLinkOptions {
  std::string address;  // host:port
  rpc::ChannelOptions channel;
  v1::WorkerInfo info;
  // Asked on the loop for every heartbeat; usage and version of the budgets are filled in.
  std::function<v1::Heartbeat()> heartbeat;
  // Whether requests are in flight: block events are looked for more often then.
  std::function<bool()> busy;
  // Told on the loop when the connection comes and goes.
  std::function<void(bool connected)> on_connection;
};

// Lives on `loop`, which must be stopped before the link is destroyed; pool and index outlive it.
class ManagerLink {
 public:
  static std::unique_ptr<ManagerLink> Start(ManagerLinkOptions options, kv::PagePool& pool,
                                            kv::PrefixIndex& index, Loop& loop);
  virtual ~ManagerLink() = default;
  // Sends a heartbeat now: readiness has changed. Thread-safe.
  virtual void SendHeartbeat() = 0;
};

}  // namespace sluice::services
