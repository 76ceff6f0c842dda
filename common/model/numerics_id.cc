#include "model/numerics_id.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace sluice::model {

Id128 NumericsId(const NumericsInputs& inputs) {
  // The leading word changes when the arithmetic of a path changes without changing the probe.
  const std::string text =
      absl::StrCat("numerics-1;", inputs.model_digest.ToHex(), ";", inputs.isa_path, ";",
                   inputs.layout_hash.ToHex(), ";", inputs.probe_logits.ToHex());
  return Hash128(text.data(), text.size());
}

}  // namespace sluice::model
