#include "rpc/parse_errors.h"

#include "absl/strings/str_cat.h"
#include "rpc/error.h"
#include "rpc/status_map.h"

namespace sluice::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

// Of one call.
class ParseErrorInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit ParseErrorInterceptor(const char* method) : method_(method) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      unparsable_ = methods->GetRecvMessage() == nullptr;
    }
    // gRPC fails the call without asking the handler, so this is its status and not the handler's.
    if (unparsable_ &&
        methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      methods->ModifySendStatus(ToGrpc(
          MakeError(v1::INVALID_FIELD,
                    absl::StrCat("the request of ", method_,
                                 " cannot be parsed as the message that this method takes"))));
    }
    methods->Proceed();
  }

 private:
  const char* const method_;  // as long as the call
  bool unparsable_ = false;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const bool parsed_first = info->type() == ServerRpcInfo::Type::UNARY ||
                              info->type() == ServerRpcInfo::Type::SERVER_STREAMING;
    return parsed_first ? new ParseErrorInterceptor(info->method())
                        : nullptr;  // gRPC takes it over
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeParseErrorInterceptor() {
  return std::make_unique<Factory>();
}

}  // namespace sluice::rpc
