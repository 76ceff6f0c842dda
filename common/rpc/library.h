// gRPC's own life time.
#pragma once

namespace sluice::rpc {

// Keeps gRPC's threads until the process ends. Without it gRPC takes them down whenever its last object goes and waits up to
// 10 s for stragglers, at the end of a process and in between. Thread-safe; idempotent.
void KeepGrpcRunning();

}  // namespace sluice::rpc
