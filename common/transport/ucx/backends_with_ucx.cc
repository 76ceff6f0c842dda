// The backends of a build with UCX.
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/factory.h"
#include "transport/loopback_backend.h"
#include "transport/tls/tls_backend.h"
#include "transport/ucx/ucx_transport.h"

namespace sluice::transport {
namespace {

Backend Ucx(const std::string& name, const std::string& description, UcxOptions::Kind kind) {
  const auto create =
      [name, kind](const TransportOptions& options) -> absl::StatusOr<std::unique_ptr<Transport>> {
    if (kind != UcxOptions::Kind::kShm && !options.trusted_network) {
      return absl::UnavailableError(absl::StrCat(
          "UCX lets anybody who reaches ", options.net_devices,
          " speak to the worker; set trusted_network: true if that is only your own machines"));
    }
    UcxOptions ucx;
    ucx.kind = kind;
    ucx.net_devices = options.net_devices;
    ucx.keepalive = options.keepalive;
    ucx.limits = options.limits;
    return UcxTransport::Create(ucx);
  };
  return {name, description, create};
}

}  // namespace

std::vector<Backend> BuiltBackends() {
  return {Ucx("ucx-shm", "workers of one host, shared memory", UcxOptions::Kind::kShm),
          Ucx("ucx-rdma", "InfiniBand or RoCE; needs trusted_network", UcxOptions::Kind::kRdma),
          Ucx("ucx-tcp", "TCP; needs trusted_network", UcxOptions::Kind::kTcp), TlsBackend(),
          LoopbackBackend()};
}

}  // namespace sluice::transport
