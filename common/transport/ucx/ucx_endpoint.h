// The records behind a UcxTransport: its peers, what is on its way to them, and what came from
// them. Internal to the folder.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "transport/buffer_pool.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace sluice::transport {

// A peer's region, ready for gets.
struct UcxRemoteRegion {
  ucp_rkey_h rkey = nullptr;
  uint64_t base = 0;
  uint64_t bytes = 0;

  UcxRemoteRegion() = default;
  UcxRemoteRegion(const UcxRemoteRegion&) = delete;
  UcxRemoteRegion& operator=(const UcxRemoteRegion&) = delete;
  ~UcxRemoteRegion() {
    if (rkey != nullptr) ucp_rkey_destroy(rkey);
  }
};

// A message that arrived. Its bytes are its own or lie in a buffer of UCX, which it gives back.
struct UcxArrival {
  std::string prefix;
  ucp_worker_h worker = nullptr;
  void* descriptor = nullptr;  // of UCX: the bytes, or the promise of them if `announced`
  bool announced = false;      // the bytes must be received first
  PooledBuffer own;
  size_t bytes = 0;

  UcxArrival() = default;
  UcxArrival(const UcxArrival&) = delete;
  UcxArrival& operator=(const UcxArrival&) = delete;
  ~UcxArrival() {
    if (descriptor != nullptr) ucp_am_data_release(worker, descriptor);
  }
  const uint8_t* data() const {
    return descriptor != nullptr ? static_cast<const uint8_t*>(descriptor) : own.data();
  }
};

struct UcxEndpoint {
  // A message that waits for those before it; empty while its bytes are being received.
  struct Slot {
    std::unique_ptr<UcxArrival> arrival;
    size_t header_bytes = 0;
    size_t bytes = 0;
  };

  UcxTransport* transport = nullptr;
  EndpointId id;
  Id128 peer;
  ucp_ep_h ep = nullptr;
  uint64_t epoch = 0;       // of this end
  uint64_t peer_epoch = 0;  // of the other end, 0 until it was heard
  size_t outstanding = 0;   // operations that UCX still holds
  size_t fetches = 0;       // of these
  size_t queued_messages = 0;
  size_t queued_bytes = 0;
  uint64_t send_sequence = 0;
  uint64_t receive_sequence = 0;
  std::map<uint64_t, Slot> slots;
  size_t slot_bytes = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<UcxRemoteRegion>> regions;  // by remote key
  bool failed = false;   // UCX said so; nothing can be sent any more
  bool closing = false;  // the owner or the peer ended it
  bool closed = false;   // UCX has let go of it
  bool down = false;     // the owner was told
  absl::Status reason;
};

// One call into UCX that has not ended. UCX reads and writes its buffers until then.
struct UcxOperation {
  enum class Kind { kSend, kFetch, kReceive };
  Kind kind = Kind::kSend;
  UcxEndpoint* endpoint = nullptr;  // lives as long as it has outstanding operations
  std::string prefix;               // kSend
  PooledBuffer data;                // kSend
  FetchId fetch;                    // kFetch
  uint64_t sequence = 0;            // kReceive
  std::unique_ptr<UcxArrival> arrival;
};

// What UCX calls. They run inside ucp_worker_progress, where no endpoint may be opened or closed:
// they only take notes.
struct UcxTransport::Callbacks {
  static ucs_status_t OnArrival(void* transport, const void* header, size_t header_bytes,
                                void* data, size_t bytes, const ucp_am_recv_param_t* param);
  static void OnDone(void* request, ucs_status_t status, void* operation);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* operation);
  static void OnError(void* endpoint, ucp_ep_h ep, ucs_status_t status);
  static void OnClosed(void* request, ucs_status_t status, void* endpoint);
};

}  // namespace sluice::transport
