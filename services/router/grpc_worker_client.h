// cluster::WorkerClient over gRPC: domain calls to messages, events back to the router's loop.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"
#include "cluster/directory.h"
#include "cluster/worker_client.h"
#include "rpc/channel_pool.h"

namespace sluice::router {

// `directory` says where workers are and must outlive the client; the loop is shared with calls
// that gRPC ends later. `on_load` gets the load that replies carry.
std::unique_ptr<cluster::WorkerClient> MakeGrpcWorkerClient(
    std::shared_ptr<Loop> loop, const cluster::Directory& directory,
    std::function<void(const WorkerId&, Incarnation, const cluster::LoadReport&)> on_load,
    const rpc::ChannelOptions& channels = {});

}  // namespace sluice::router
