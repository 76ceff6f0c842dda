#include "engine/transformer/kv_calibration.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/huge_page_arena.h"
#include "kernels/fp/fp.h"
#include "kernels/kv_store/kv_store.h"

namespace sluice::engine {
namespace {

absl::Status CheckInput(const ModelInfo& info, absl::Span<const TokenId> tokens) {
  const kv::LayoutSpec& spec = info.layout.spec();
  if (spec.kind() != kv::KvKind::kHeads) {
    return absl::UnimplementedError(
        absl::StrCat(info.name, " has latent attention, whose KV formats are not centred"));
  }
  if (spec.format != kernels::KvFormat::kF32) {
    return absl::FailedPreconditionError(
        absl::StrCat("calibration needs pages of f32, not ", info.layout.Describe()));
  }
  const auto most = static_cast<size_t>(info.context_tokens);
  if (tokens.size() <= kCalibrationSkippedTokens || tokens.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat(tokens.size(), " tokens to calibrate with; ",
                                                   kCalibrationSkippedTokens + 1, " to ", most,
                                                   " are possible"));
  }
  for (TokenId token : tokens) {
    if (token >= 0 && token < info.vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " is outside the vocabulary of ", info.vocabulary));
  }
  return absl::OkStatus();
}

// Sums in double over the positions in order, so that nothing but them decides the bits.
void AddMeans(const kernels::KvLayerView& view, const std::byte* const* pages, int64_t tokens,
              model::KvCentre* centre) {
  const auto width = static_cast<size_t>(view.kv_heads * view.head_dim);
  std::vector<float> k(width), v(width);
  std::vector<double> k_sum(width), v_sum(width);
  for (int64_t position = kCalibrationSkippedTokens; position < tokens; ++position) {
    kernels::LoadKv(view, pages, position, k.data(), v.data());
    for (size_t i = 0; i < width; ++i) k_sum[i] += static_cast<double>(k[i]);
    for (size_t i = 0; i < width; ++i) v_sum[i] += static_cast<double>(v[i]);
  }
  const auto rounded_mean = [&](double sum) {
    const double mean = sum / static_cast<double>(tokens - kCalibrationSkippedTokens);
    return kernels::Bf16ToFloat(kernels::FloatToBf16(static_cast<float>(mean)));
  };
  for (double sum : k_sum) centre->k.push_back(rounded_mean(sum));
  for (double sum : v_sum) centre->v.push_back(rounded_mean(sum));
}

}  // namespace

absl::StatusOr<model::KvCentre> CalibrateKvCentre(ModelRunner& runner,
                                                  absl::Span<const TokenId> tokens) {
  const ModelInfo& info = runner.info();
  SLUICE_RETURN_IF_ERROR(CheckInput(info, tokens));
  const size_t page_bytes = info.layout.page_bytes();
  const size_t count = info.layout.PagesFor(static_cast<uint32_t>(tokens.size()));
  SLUICE_ASSIGN_OR_RETURN(const auto memory, device::HugePageArena::Create(count * page_bytes));
  std::vector<uint8_t*> table;
  std::vector<const std::byte*> pages;
  for (size_t i = 0; i < count; ++i) {
    pages.push_back(memory.memory().data() + i * page_bytes);
    table.push_back(reinterpret_cast<uint8_t*>(memory.memory().data()) + i * page_bytes);
  }
  const Segment segment = {tokens, 0, table, LogitsWanted::kNone};
  SLUICE_RETURN_IF_ERROR(runner.Forward({&segment, 1}, nullptr, {}));
  model::KvCentre centre;
  centre.layers = info.layout.spec().layers;
  centre.kv_heads = info.layout.spec().kv_heads;
  centre.head_dim = info.layout.spec().head_dim;
  for (uint32_t layer = 0; layer < centre.layers; ++layer) {
    AddMeans(info.layout.LayerView(layer), pages.data(), static_cast<int64_t>(tokens.size()),
             &centre);
  }
  return centre;
}

}  // namespace sluice::engine
