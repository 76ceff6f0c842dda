#include "rpc/library.h"

#include "grpc/grpc.h"

namespace sluice::rpc {

void KeepGrpcRunning() {
  [[maybe_unused]] static const bool running = [] {
    grpc_init();
    return true;
  }();
}

}  // namespace sluice::rpc
