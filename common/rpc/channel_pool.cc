#include "rpc/channel_pool.h"

#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "rpc/library.h"
#include "rpc/tls.h"

namespace sluice::rpc {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelOptions& options) {
  KeepGrpcRunning();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max));
  arguments.SetMaxSendMessageSize(static_cast<int>(options.message_bytes_max));
  // A peer that vanished without closing is noticed within keepalive time + timeout. The server
  // permits 10 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Before the server closes the idle connection: a call that starts at that moment would fail.
  arguments.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, 40000);
  // Retries are decided above: a call may have had effects.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Peers are named by address; a proxy from the environment must not come between.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address,
                                   options.tls != nullptr ? options.tls->ForChannel(options.servers)
                                                          : grpc::InsecureChannelCredentials(),
                                   arguments);
}

std::shared_ptr<grpc::Channel> ChannelPool::Get(absl::string_view address) {
  MutexLock lock(mutex_);
  const auto it = channels_.find(address);
  if (it != channels_.end()) return it->second;
  if (channels_.size() >= options_.channels_max) {
    absl::erase_if(channels_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  std::shared_ptr<grpc::Channel> channel = MakeChannel(std::string(address), options_);
  if (channels_.size() < options_.channels_max) channels_.emplace(std::string(address), channel);
  return channel;
}

void ChannelPool::Drop(absl::string_view address) {
  MutexLock lock(mutex_);
  channels_.erase(address);
}

size_t ChannelPool::size() const {
  MutexLock lock(mutex_);
  return channels_.size();
}

}  // namespace sluice::rpc
