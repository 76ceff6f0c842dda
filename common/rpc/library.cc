#include "rpc/library.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdio>
#include <memory>

#include "absl/strings/match.h"
#include "base/log.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace sluice::rpc {
namespace {

// A channel that has made one callback call holds the queue behind all callback calls. Without it
// the last channel or server to go takes that queue down, and gRPC 1.51 aborts when that happens on
// one of the queue's own threads: at the end of a call whose context was the last to know its
// channel. Never destroyed.
struct QueueKeeper {
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel("unix:/nonexistent/sluice", grpc::InsecureChannelCredentials());
  grpc::GenericStub stub{channel};
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

// gRPC's log has no owner but the process.
std::atomic<uint64_t>& HandshakeCount() {
  static std::atomic<uint64_t> count = 0;
  return count;
}

void OnGrpcLog(gpr_log_func_args* line) {
  const absl::string_view message = line->message;
  if (absl::StartsWith(message, "Handshaking failed")) {
    const uint64_t before = HandshakeCount().fetch_add(1, std::memory_order_relaxed);
    // Ever rarer, so that a flood does not fill the log.
    if (!std::has_single_bit(before + 1)) return;
    SLUICE_LOG(kWarning) << "grpc: refused a connection" << Field("why", message.substr(0, 500))
                         << Field("so_far", before + 1);
    return;
  }
  // Of a handshake that fails the call or the count above tells; that certificates name no hosts is
  // meant.
  const bool of_handshake = absl::EndsWith(line->file, "/ssl_transport_security.cc") ||
                            absl::EndsWith(line->file, "/tls_security_connector.cc");
  if (line->severity == GPR_LOG_SEVERITY_ERROR && !of_handshake) {
    SLUICE_LOG(kWarning) << "grpc: " << message;
  }
}

}  // namespace

uint64_t RefusedHandshakes() { return HandshakeCount().load(std::memory_order_relaxed); }

void KeepGrpcRunning() {
  [[maybe_unused]] static const QueueKeeper* const keeper = [] {
    gpr_set_log_function(OnGrpcLog);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
    grpc_init();
    auto* made = new QueueKeeper();
    made->stub.UnaryCall(&made->context, "/sluice/keep", grpc::StubOptions(), &made->request,
                         &made->response, [](const grpc::Status&) {});
    return made;
  }();
}

void ExitProcess(int code) {
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace sluice::rpc
