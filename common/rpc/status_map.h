// absl::Status <-> grpc::Status, one table and one place. Details travel as google.rpc.Status in
// grpc-status-details-bin: sluice.v1.ErrorDetail and, for clients that know nothing of Sluice,
// google.rpc ErrorInfo, RetryInfo and BadRequest.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace grpc {
class CallbackServerContext;
class ServerUnaryReactor;
}  // namespace grpc

namespace sluice::rpc {

// Messages are cut so that the trailers stay within the 8 KiB metadata limit.
inline constexpr size_t kStatusMessageBytesMax = 2048;

grpc::Status ToGrpc(const absl::Status& status);
// Damaged or missing details are no error: the code and message stand alone then.
absl::Status FromGrpc(const grpc::Status& status);

// For a status that came from `peer` ("worker decode-0"): services always send a detail, so one
// without was made by gRPC itself, whose text is about sockets and frames. It is replaced by plain
// words, and kept as a payload that logs show.
absl::Status InPlainWords(const absl::Status& status, absl::string_view peer);

// Answers a unary call at once; returns what its handler gives to gRPC.
grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context,
                                      const absl::Status& status);

}  // namespace sluice::rpc
