// The backends of a build without UCX.
#include "transport/factory.h"
#include "transport/loopback_backend.h"
#include "transport/tls/tls_backend.h"

namespace sluice::transport {

std::vector<Backend> BuiltBackends() { return {TlsBackend(), LoopbackBackend()}; }

}  // namespace sluice::transport
