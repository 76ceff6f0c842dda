// gRPC's own life time.
#pragma once

#include <cstdint>

namespace sluice::rpc {

// Keeps gRPC's threads until the process ends. Without it gRPC takes them down whenever its last
// object goes and waits up to 10 s for stragglers, at the end of a process and in between.
// Thread-safe; idempotent.
void KeepGrpcRunning();

// Connections whose handshake failed at any server of this process: no TLS, no certificate of ours,
// silence, noise. gRPC 1.51 tells of them only in its log, which KeepGrpcRunning therefore takes
// over: its errors become warnings of ours. Thread-safe.
uint64_t RefusedHandshakes();

// Ends a process that used gRPC: the last thing main does, once everything of ours is stopped.
// Flushes stdio and leaves without static destructors, because gRPC's threads still run and 1.51
// aborts now and then when its libraries are torn down under them.
[[noreturn]] void ExitProcess(int code);

}  // namespace sluice::rpc
