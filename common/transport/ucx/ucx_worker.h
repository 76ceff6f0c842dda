// UCX set up for one transport: context, worker, the memory it shares. Nothing here knows the
// protocol.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/ucx/shm_folder.h"

namespace sluice::transport {

// The id of the one kind of active message that we use.
inline constexpr unsigned kMessageId = 1;

struct UcxSettings {
  std::string transports;   // UCX_TLS: "posix", "tcp", ...
  std::string net_devices;  // UCX_NET_DEVICES: UCX listens on every interface unless told
  bool remote_memory = false;
  bool shared_memory = false;
  // The event descriptor tells of finished sends and gets, not only of what arrives.
  bool wake_on_completion = true;
  // How often UCX looks whether a silent peer lives.
  absl::Duration keepalive = absl::Seconds(1);
};

// The status of UCX in ours, with `what` in front.
absl::Status UcxError(absl::string_view what, ucs_status_t status);

// Owns a UCX context and its worker. Belongs to one loop. Endpoints must be closed before it goes.
class UcxWorker {
 public:
  // With shared memory it sets environment variables of this process, so call it before other
  // threads run. Errors: UNAVAILABLE when UCX lacks the transports or devices.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const UcxSettings& settings);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h handle() const { return worker_; }
  int event_fd() const { return event_fd_; }
  size_t header_bytes_max() const { return header_bytes_max_; }
  const std::string& address() const { return address_; }

  struct Memory {
    absl::Span<uint8_t> bytes;
    std::string rkey;
  };
  // Zeroed memory that peers may read. Released with the worker.
  absl::StatusOr<Memory> AllocateMemory(size_t bytes);

 private:
  UcxWorker() = default;
  absl::Status Init(const UcxSettings& settings);
  absl::Status InitContext(const UcxSettings& settings);
  absl::Status InitWorker(const UcxSettings& settings);

  std::unique_ptr<ShmFolder> shm_folder_;  // outlives the context
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  bool shared_memory_ = false;
  int event_fd_ = -1;
  size_t header_bytes_max_ = 0;
  std::string address_;
  std::vector<ucp_mem_h> memory_;
};

}  // namespace sluice::transport
