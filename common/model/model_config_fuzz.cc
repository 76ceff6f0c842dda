// Any bytes are read as GGUF metadata and as a config.json; a config that is accepted must be
// usable.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "model/config.h"

namespace {

void Use(const absl::StatusOr<sluice::model::ModelConfig>& config) {
  if (!config.ok()) return;
  SLUICE_CHECK(sluice::model::ValidateConfig(*config).ok());
  SLUICE_CHECK(sluice::model::InverseFrequencies(*config).size() ==
               static_cast<size_t>(config->rotary_dim() / 2));
  static_cast<void>(sluice::model::ConfigDigest(*config));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto gguf = sluice::formats::GgufFile::Parse({data, size}, "fuzz");
  if (gguf.ok()) Use(sluice::model::ConfigFromGguf(*gguf, "fuzz"));
  const auto json = sluice::formats::ParseJson({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (json.ok()) Use(sluice::model::ConfigFromHf(*json, &*json, "fuzz"));
  return 0;
}
