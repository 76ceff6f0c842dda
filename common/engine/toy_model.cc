#include "engine/toy_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/kv_store/kv_store.h"

namespace sluice::engine {
namespace {

constexpr absl::string_view kAlphabet = "etaoinshrdlucmfwypvbgkqjxz  .";
// Logits of the four candidates, of other letters, and of everything else.
constexpr std::array<float, 4> kPeaks = {6.0f, 5.2f, 4.4f, 3.0f};
constexpr float kLetter = -3.0f;
constexpr float kElsewhere = -30.0f;
constexpr float kEosPeak = 9.0f;

// A value of either sign in [1, 15] with a mantissa of three bits: exact in every KV format.
float ValueOfByte(uint64_t byte) {
  const float magnitude =
      std::ldexp(1.0f + static_cast<float>(byte & 7u) / 8.0f, static_cast<int>((byte >> 3) & 3u));
  return (byte & 0x80u) != 0 ? -magnitude : magnitude;
}

class ToyModel final : public ModelRunner {
 public:
  ToyModel(const ToyModelOptions& options, const kv::PageLayout& layout)
      : salt_(options.flavour == 0 ? options.salt : Mix64(options.salt + options.flavour)) {
    eos_one_in_ = options.eos_one_in;
    info_.name = "toy";
    info_.vocabulary = kToyVocabulary;
    info_.context_tokens = options.context_tokens;
    info_.layers = static_cast<int>(layout.spec().layers);
    info_.eos_tokens = {kToyEos};
    info_.layout = layout;
    const std::string identity = absl::StrCat("toy 1 salt ", options.salt, " eos ", eos_one_in_);
    info_.model_digest = Hash128(identity.data(), identity.size());
    const std::string numerics =
        absl::StrCat(identity, " ", layout.hash().ToHex(),
                     options.flavour == 0 ? "" : absl::StrCat(" flavour ", options.flavour));
    info_.numerics_id = Hash128(numerics.data(), numerics.size());
    row_floats_ = size_t{layout.spec().kv_heads} * layout.spec().head_dim;
  }

  const ModelInfo& info() const override { return info_; }
  uint64_t weight_bytes_read() const override { return 0; }

  absl::Status Forward(absl::Span<const Segment> segments, ForwardHooks* hooks,
                       absl::Span<float> logits) override {
    for (int layer = 0; layer < info_.layers; ++layer) {
      if (hooks != nullptr && hooks->Cancelled()) {
        return absl::CancelledError(absl::StrCat("cancelled before layer ", layer));
      }
      for (const Segment& segment : segments) WriteLayer(segment, layer);
      if (hooks != nullptr) hooks->LayersDone(layer, layer + 1);
    }
    size_t rows = 0;
    for (const Segment& segment : segments) {
      const size_t count = segment.tokens.size();
      const size_t wanted = segment.logits == LogitsWanted::kAll    ? count
                            : segment.logits == LogitsWanted::kLast ? 1
                                                                    : 0;
      for (size_t i = count - wanted; i < count; ++i, ++rows) {
        SLUICE_CHECK((rows + 1) * kToyVocabulary <= logits.size()) << "logits hold too few rows";
        const uint64_t hash =
            HashOfContext(segment.pages, segment.first_position + static_cast<int32_t>(i));
        FillLogits(hash, logits.subspan(rows * kToyVocabulary, kToyVocabulary));
      }
    }
    SLUICE_CHECK(rows * kToyVocabulary == logits.size()) << "logits hold more rows than asked for";
    return absl::OkStatus();
  }

 private:
  void WriteLayer(const Segment& segment, int layer) {
    const kernels::KvLayerView view = info_.layout.LayerView(static_cast<uint32_t>(layer));
    const size_t count = segment.tokens.size();
    SLUICE_CHECK(count > 0);
    k_.resize(count * row_floats_);
    v_.resize(count * row_floats_);
    for (size_t i = 0; i < count; ++i) {
      const auto position = static_cast<uint64_t>(segment.first_position) + i;
      const uint64_t seed =
          Mix64(Mix64(salt_ + static_cast<uint64_t>(segment.tokens[i])) ^
                (position * 0x9E3779B97F4A7C15ULL) ^ static_cast<uint64_t>(layer));
      FillRow(seed, k_.data() + i * row_floats_);
      FillRow(~seed, v_.data() + i * row_floats_);
    }
    pages_.clear();
    for (uint8_t* page : segment.pages) pages_.push_back(reinterpret_cast<std::byte*>(page));
    kernels::KvRows rows;
    rows.k = k_.data();
    rows.v = v_.data();
    rows.k_stride = rows.v_stride = static_cast<int64_t>(row_floats_);
    kernels::StoreKv(kernels::IsaPath::kReference, view, pages_.data(), segment.first_position,
                     rows, 0, static_cast<int>(count));
  }

  // Every head has a power of two of its own, so that the scales of a format carry information too.
  void FillRow(uint64_t seed, float* row) const {
    const uint32_t head_dim = info_.layout.spec().head_dim;
    for (size_t i = 0; i < row_floats_; i += 8) {
      const uint64_t bytes = Mix64(seed + i);
      const int exponent = static_cast<int>(Mix64(seed ^ (i / head_dim)) >> 61) - 4;
      for (size_t j = 0; j < 8; ++j)
        row[i + j] = std::ldexp(ValueOfByte(bytes >> (8 * j)), exponent);
    }
  }

  uint64_t HashOfContext(absl::Span<uint8_t* const> pages, int32_t position) {
    const kv::LayoutSpec& spec = info_.layout.spec();
    const auto slots = static_cast<uint64_t>(
        kernels::SlotOfPosition(position, static_cast<int>(spec.sink_rows)) + 1);
    const uint64_t full_pages = slots / spec.page_tokens;
    uint64_t hash = Mix64(salt_ ^ static_cast<uint64_t>(position));
    for (uint64_t i = 0; i < full_pages; ++i) {
      hash = Hash64(pages[i] + kv::kPageHeaderBytes,
                    info_.layout.page_bytes() - kv::kPageHeaderBytes, hash);
    }
    const auto rest = static_cast<int>(slots % spec.page_tokens);
    k_.resize(row_floats_);
    v_.resize(row_floats_);
    for (int row = 0; row < rest; ++row) {
      for (uint32_t layer = 0; layer < spec.layers; ++layer) {
        kernels::LoadKvSlot(info_.layout.LayerView(layer),
                            reinterpret_cast<const std::byte*>(pages[full_pages]), row, k_.data(),
                            v_.data());
        hash = Hash64(k_.data(), row_floats_ * sizeof(float), hash);
        hash = Hash64(v_.data(), row_floats_ * sizeof(float), hash);
      }
    }
    return hash;
  }

  void FillLogits(uint64_t hash, absl::Span<float> logits) const {
    std::fill(logits.begin(), logits.end(), kElsewhere);
    for (char letter : kAlphabet) logits[static_cast<uint8_t>(letter)] = kLetter;
    uint64_t state = hash;
    // Weakest first: when two peaks meet on one letter the stronger stays.
    for (size_t i = kPeaks.size(); i-- > 0;) {
      state = Mix64(state + 0x9E3779B97F4A7C15ULL);
      const float jitter =
          static_cast<float>(state >> 40) * 0x1p-26f;  // below 0.25: no two rows alike
      logits[static_cast<uint8_t>(kAlphabet[state % kAlphabet.size()])] = kPeaks[i] + jitter;
    }
    if (eos_one_in_ > 0 && Mix64(state + 1) % eos_one_in_ == 0) logits[kToyEos] = kEosPeak;
  }

  ModelInfo info_;
  const uint64_t salt_;
  uint64_t eos_one_in_ = 0;
  size_t row_floats_ = 0;  // kv_heads * head_dim
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<std::byte*> pages_;
};

}  // namespace

kv::LayoutSpec ToyLayoutSpec(kernels::KvFormat format) {
  kv::LayoutSpec spec;
  spec.format = format;
  spec.page_tokens = 32;
  spec.sink_rows = kernels::IsCentred(format) ? 1 : 0;
  spec.layers = 2;
  spec.kv_heads = 1;
  spec.head_dim = 16;
  return spec;
}

absl::StatusOr<std::unique_ptr<ModelRunner>> CreateToyModel(const ToyModelOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const kv::PageLayout layout, kv::PageLayout::Make(options.layout));
  if (options.context_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "toy model: a context of ", options.context_tokens, " tokens; it must be at least 1"));
  }
  return std::make_unique<ToyModel>(options, layout);
}

}  // namespace sluice::engine
