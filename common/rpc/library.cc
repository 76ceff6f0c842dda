#include "rpc/library.h"

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace sluice::rpc {
namespace {

// A channel that has made one callback call holds the queue behind all callback calls. Without it the last channel or server to
// go takes that queue down, and gRPC 1.51 aborts when that happens on one of the queue's own threads: at the end of a call whose
// context was the last to know its channel. Never destroyed.
struct QueueKeeper {
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel("unix:/nonexistent/sluice", grpc::InsecureChannelCredentials());
  grpc::GenericStub stub{channel};
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

}  // namespace

void KeepGrpcRunning() {
  [[maybe_unused]] static const QueueKeeper* const keeper = [] {
    grpc_init();
    auto* made = new QueueKeeper();
    made->stub.UnaryCall(&made->context, "/sluice/keep", grpc::StubOptions(), &made->request, &made->response,
                         [](const grpc::Status&) {});
    return made;
  }();
}

void ExitProcess(int code) {
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace sluice::rpc
