#include "transport/transport.h"

#include "absl/strings/str_cat.h"

namespace sluice::transport {

absl::Status CheckSend(const Limits& limits, EndpointId to, size_t bytes, size_t queued_messages,
                       size_t queued_bytes) {
  if (bytes > limits.message_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes, " bytes; the most is ", limits.message_bytes_max));
  }
  if (queued_messages >= limits.send_queue_messages_max ||
      (queued_messages > 0 && queued_bytes + bytes > limits.send_queue_bytes_max)) {
    return absl::ResourceExhaustedError(absl::StrCat("endpoint ", to.value(), " has ",
                                                     queued_messages, " messages of ", queued_bytes,
                                                     " bytes queued"));
  }
  return absl::OkStatus();
}

}  // namespace sluice::transport
