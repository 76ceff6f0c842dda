// The entry of the loopback network in the list of backends. Internal to the folder.
#pragma once

#include "transport/factory.h"

namespace sluice::transport {

Backend LoopbackBackend();

}  // namespace sluice::transport
