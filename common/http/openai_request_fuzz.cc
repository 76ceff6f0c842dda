// Any text is read as the body of every endpoint; errors must name a reason, and what is accepted
// must keep the limits.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "http/openai_error.h"
#include "http/openai_request.h"

namespace {

using sluice::http::Endpoint;

void Check(Endpoint endpoint, absl::string_view body) {
  const auto request = sluice::http::ParseGeneration(endpoint, body);
  if (!request.ok()) {
    SLUICE_CHECK(sluice::http::ErrorReply(request.status(), endpoint, "id").status == 400);
    return;
  }
  SLUICE_CHECK(!request->generations.empty() && request->generations.size() <= 16);
  SLUICE_CHECK(request->choices >= 1 && request->choices <= 8);
  // Strings that are no UTF-8 would not serialize.
  for (const auto& generation : request->generations)
    SLUICE_CHECK(!generation.SerializeAsString().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  Check(Endpoint::kChat, body);
  Check(Endpoint::kCompletions, body);
  static_cast<void>(sluice::http::ParseTokenize(body));
  static_cast<void>(sluice::http::ParseDetokenize(body));
  return 0;
}
