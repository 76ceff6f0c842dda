// The backends of a build without UCX.
#include "transport/factory.h"
#include "transport/loopback_backend.h"

namespace sluice::transport {

std::vector<Backend> BuiltBackends() { return {LoopbackBackend()}; }

}  // namespace sluice::transport
