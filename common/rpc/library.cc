#include "rpc/library.h"

#include <unistd.h>

#include <cstdio>

#include "grpc/grpc.h"

namespace sluice::rpc {

void KeepGrpcRunning() {
  [[maybe_unused]] static const bool running = [] {
    grpc_init();
    return true;
  }();
}

void ExitProcess(int code) {
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace sluice::rpc
