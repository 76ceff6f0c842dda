// main() of sluice-prefill and sluice-decode.
#pragma once

#include <string>

namespace sluice::services {

// `service` is "prefill" or "decode". Returns the exit code: 0 after a drain, 2 for what the
// operator must change.
int WorkerMain(int argc, char** argv, const std::string& service);

}  // namespace sluice::services
