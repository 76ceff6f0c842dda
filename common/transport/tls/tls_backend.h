// The factory's entry for the tls backend. Internal to the folder.
#pragma once

#include "transport/factory.h"

namespace sluice::transport {

Backend TlsBackend();

}  // namespace sluice::transport
