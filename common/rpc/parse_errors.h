// Requests that are no message of their method's type: INVALID_ARGUMENT instead of the
// UNIMPLEMENTED that gRPC 1.51 answers.
#pragma once

#include <memory>

#include "grpcpp/support/server_interceptor.h"

namespace sluice::rpc {

// For ServerBuilder::experimental().SetInterceptorCreators. Looks at unary calls and server
// streams, whose request gRPC parses before their handler is asked; what a bidirectional stream
// cannot parse ends it like the end of its peer.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeParseErrorInterceptor();

}  // namespace sluice::rpc
