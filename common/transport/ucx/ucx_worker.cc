#include "transport/ucx/ucx_worker.h"

#include <sys/statvfs.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

extern "C" {
#include <ucs/debug/log_def.h>
}

namespace sluice::transport {
namespace {

// UCX prints to stdout otherwise, which belongs to the program. What it calls an error is a peer
// that went away.
ucs_log_func_rc_t LogUcx(const char* file, unsigned line, const char* /*function*/,
                         ucs_log_level_t level, const ucs_log_component_config_t* /*config*/,
                         const char* format, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof(text), format, arguments);
  if (level == UCS_LOG_LEVEL_FATAL) {
    SLUICE_LOG(kError) << "ucx: " << text << Field("file", file) << Field("line", line);
  } else if (level <= UCS_LOG_LEVEL_WARN) {
    SLUICE_LOG(kInfo) << "ucx: " << text << Field("file", file) << Field("line", line);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

absl::Status Set(ucp_config_t* config, const char* name, const std::string& value) {
  const ucs_status_t status = ucp_config_modify(config, name, value.c_str());
  return status == UCS_OK ? absl::OkStatus()
                          : UcxError(absl::StrCat("UCX_", name, "=", value), status);
}

absl::Status Configure(ucp_config_t* config, const UcxSettings& settings) {
  SLUICE_RETURN_IF_ERROR(Set(config, "TLS", settings.transports));
  SLUICE_RETURN_IF_ERROR(Set(config, "NET_DEVICES", settings.net_devices));
  SLUICE_RETURN_IF_ERROR(Set(config, "KEEPALIVE_INTERVAL",
                             absl::StrCat(absl::ToInt64Milliseconds(settings.keepalive), "ms")));
  // All of them start as zeroed pages of the kernel; UCX's own list ends with the heap. Other
  // processes see posix only.
  return Set(config, "ALLOC_PRIO", settings.shared_memory ? "md:posix" : "thp,mmap");
}

// A segment that does not fit is noticed by a signal at its first use otherwise.
absl::Status CheckSharedMemory(size_t bytes) {
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) != 0) return absl::OkStatus();  // UCX will tell
  const uint64_t free = uint64_t{shm.f_bavail} * shm.f_frsize;
  if (bytes <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("/dev/shm has ", free >> 20, " MiB free, the region needs ", bytes >> 20,
                   "; enlarge it (mount -o remount,size=...) or configure fewer pages"));
}

}  // namespace

absl::Status UcxError(absl::string_view what, ucs_status_t status) {
  const std::string text = absl::StrCat(what, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_OK:
      return absl::OkStatus();
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::ResourceExhaustedError(text);
    case UCS_ERR_CANCELED:
      return absl::CancelledError(text);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const UcxSettings& settings) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  SLUICE_RETURN_IF_ERROR(worker->Init(settings));
  return worker;
}

absl::Status UcxWorker::Init(const UcxSettings& settings) {
  static std::once_flag once;
  std::call_once(once, [] { ucs_log_push_handler(LogUcx); });
  shared_memory_ = settings.shared_memory;
  SLUICE_RETURN_IF_ERROR(InitContext(settings));
  return InitWorker(settings);
}

absl::Status UcxWorker::InitContext(const UcxSettings& settings) {
  // UCX 1.13 reads these from nowhere else. Shared memory refuses to report dead peers without the
  // first; the second is where it makes its segments.
  if (shared_memory_) {
    SLUICE_ASSIGN_OR_RETURN(shm_folder_, ShmFolder::Create());
    setenv("UCX_POSIX_ERROR_HANDLING", "y", /*overwrite=*/1);
    setenv("UCX_POSIX_DIR", shm_folder_->path().c_str(), /*overwrite=*/1);
  }
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("ucp_config_read", status);
  const absl::Status configured = Configure(config, settings);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (settings.remote_memory) params.features |= UCP_FEATURE_RMA;
  if (configured.ok()) status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (shared_memory_) unsetenv("UCX_POSIX_DIR");
  SLUICE_RETURN_IF_ERROR(configured);
  return status == UCS_OK
             ? absl::OkStatus()
             : UcxError(absl::StrCat("UCX offers no '", settings.transports, "' on devices '",
                                     settings.net_devices, "' (see ucx_info -d)"),
                        status);
}

absl::Status UcxWorker::InitWorker(const UcxSettings& settings) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  params.events = UCP_WAKEUP_RX;
  if (settings.wake_on_completion) params.events |= UCP_WAKEUP_TX | UCP_WAKEUP_RMA;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made on one thread, used on another
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) return UcxError("ucp_worker_create", status);
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return UcxError("this UCX transport has no event descriptor", status);
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  status = ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return UcxError("ucp_worker_query", status);
  address_.assign(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  header_bytes_max_ = attributes.max_am_header;
  ucp_worker_release_address(worker_, attributes.address);
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  for (ucp_mem_h memory : memory_) ucp_mem_unmap(context_, memory);
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<UcxWorker::Memory> UcxWorker::AllocateMemory(size_t bytes) {
  if (shared_memory_) SLUICE_RETURN_IF_ERROR(CheckSharedMemory(bytes));
  ucp_mem_map_params_t params{};
  params.field_mask =
      UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  params.prot =
      UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_READ;
  ucp_mem_h handle = nullptr;
  ucs_status_t status = ucp_mem_map(context_, &params, &handle);
  if (status != UCS_OK) {
    return UcxError(absl::StrCat("cannot allocate ", bytes, " bytes through UCX"), status);
  }
  memory_.push_back(handle);
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  status = ucp_mem_query(handle, &attributes);
  if (status != UCS_OK) return UcxError("ucp_mem_query", status);
  void* packed = nullptr;
  size_t packed_bytes = 0;
  status = ucp_rkey_pack(context_, handle, &packed, &packed_bytes);
  if (status != UCS_OK) return UcxError("ucp_rkey_pack", status);
  Memory memory;
  memory.bytes = absl::MakeSpan(static_cast<uint8_t*>(attributes.address), bytes);
  memory.rkey.assign(static_cast<const char*>(packed), packed_bytes);
  ucp_rkey_buffer_release(packed);
  return memory;
}

}  // namespace sluice::transport
