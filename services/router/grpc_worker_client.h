// cluster::WorkerClient over gRPC: domain calls to messages, events back to the router's loop.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"
#include "cluster/directory.h"
#include "cluster/worker_client.h"
#include "rpc/channel_pool.h"
#include "services/process/claim_key_file.h"

namespace sluice::router {

// `directory` says where workers are and must outlive the client; the loop is shared with calls
// that gRPC ends later. `on_load` gets the load that replies carry. `claims`, if any, sign what is
// asked of workers, and must outlive the client.
std::unique_ptr<cluster::WorkerClient> MakeGrpcWorkerClient(
    std::shared_ptr<Loop> loop, const cluster::Directory& directory,
    std::function<void(const WorkerId&, Incarnation, const cluster::LoadReport&)> on_load,
    const rpc::ChannelOptions& channels = {}, const services::ClaimKeyFile* claims = nullptr);

}  // namespace sluice::router
