#include "transport/tls/tls_backend.h"

#include "transport/tls/tls_transport.h"

namespace sluice::transport {

Backend TlsBackend() {
  const auto create =
      [](const TransportOptions& options) -> absl::StatusOr<std::unique_ptr<Transport>> {
    if (options.certificates.empty()) {
      return absl::UnavailableError(
          "it needs certificates: set service.tls (`sluice certs` makes some for a trial)");
    }
    TlsOptions tls;
    tls.files = options.certificates;
    tls.listen = options.tls_listen;
    tls.advertise = options.tls_advertise;
    tls.keepalive = options.keepalive;
    tls.limits = options.limits;
    return TlsTransport::Create(tls);
  };
  return {"tls", "TCP with certificates at both ends, for workers of different hosts", create};
}

}  // namespace sluice::transport
