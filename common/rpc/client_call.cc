#include "rpc/client_call.h"

#include "grpc/support/time.h"

namespace sluice::rpc {

ClientCall::ClientCall(const CallOptions& options) {
  if (options.timeout != absl::InfiniteDuration()) {
    context_.set_deadline(gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_micros(absl::ToInt64Microseconds(options.timeout), GPR_TIMESPAN)));
  }
  for (const auto& [key, value] : options.metadata) context_.AddMetadata(key, value);
  context_.set_wait_for_ready(options.wait_for_ready);
}

}  // namespace sluice::rpc
