#include "rpc/status_map.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "rpc/error.h"
#include "sluice/v1/rpc_status.pb.h"

namespace sluice::rpc {
namespace {

constexpr char kDetailUrl[] = "type.googleapis.com/sluice.v1.ErrorDetail";
constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

void AddDetail(v1::RpcStatus* status, absl::string_view url,
               const google::protobuf::MessageLite& message) {
  google::protobuf::Any* any = status->add_details();
  any->set_type_url(std::string(url));
  any->set_value(message.SerializeAsString());
}

constexpr char kGrpcTextUrl[] = "sluice/grpc";

// Cuts at a character boundary: a gRPC message must be valid UTF-8.
std::string Cut(absl::string_view text) {
  if (text.size() <= kStatusMessageBytesMax) return std::string(text);
  size_t end = kStatusMessageBytesMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const v1::ErrorDetail detail = DetailOf(status);
  v1::RpcStatus rpc;
  rpc.set_code(static_cast<int>(status.code()));
  rpc.set_message(Cut(status.message()));
  AddDetail(&rpc, kDetailUrl, detail);
  v1::RpcErrorInfo info;
  info.set_reason(v1::ErrorReason_Name(detail.reason()));
  info.set_domain("sluice");
  (*info.mutable_metadata())["retryable"] = detail.retryable() ? "true" : "false";
  if (!detail.source().empty()) (*info.mutable_metadata())["source"] = detail.source();
  if (!detail.request_id().empty()) (*info.mutable_metadata())["request_id"] = detail.request_id();
  AddDetail(&rpc, kErrorInfoUrl, info);
  if (detail.retry_after_ms() > 0) {
    v1::RpcRetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(detail.retry_after_ms() / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(detail.retry_after_ms() % 1000) *
                                           1000000);
    AddDetail(&rpc, kRetryInfoUrl, retry);
  }
  if (!detail.field().empty()) {
    v1::RpcBadRequest bad;
    bad.add_field_violations()->set_field(detail.field());
    bad.mutable_field_violations(0)->set_description(rpc.message());
    AddDetail(&rpc, kBadRequestUrl, bad);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), rpc.message(),
                      rpc.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  v1::RpcStatus rpc;
  if (status.error_details().empty() || !rpc.ParseFromString(status.error_details())) return result;
  for (const google::protobuf::Any& any : rpc.details()) {
    v1::ErrorDetail detail;
    if (any.type_url() == kDetailUrl && detail.ParseFromString(any.value())) {
      SetDetail(&result, detail);
      break;
    }
  }
  return result;
}

absl::Status InPlainWords(const absl::Status& status, absl::string_view peer) {
  if (status.ok() || HasDetail(status)) return status;
  absl::string_view words = "broke the connection";
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      words = "cannot be reached, or its connection broke";
      break;
    case absl::StatusCode::kCancelled:
      words = "ended the call";
      break;
    case absl::StatusCode::kDeadlineExceeded:
      words = "did not answer in time";
      break;
    case absl::StatusCode::kUnimplemented:
      words = "does not know the call: it is of another version";
      break;
    case absl::StatusCode::kResourceExhausted:
      words = "refused a message as too large";
      break;
    default:
      break;
  }
  absl::Status plain(status.code(), absl::StrCat(peer, " ", words));
  plain.SetPayload(kGrpcTextUrl, absl::Cord(status.message()));
  return plain;
}

grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context,
                                      const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace sluice::rpc
