// A model without weights whose every logit depends on every byte of KV that it may attend.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/model_runner.h"
#include "kv/page_layout.h"

namespace sluice::engine {

// Vocabulary of the toy model: ids 0..255 are bytes.
inline constexpr TokenId kToyEos = 256;
inline constexpr TokenId kToyBos = 257;
inline constexpr TokenId kToyVocabulary = 258;

// Small pages, so that tests with thousands of tokens stay fast: two layers of one head with 16
// dimensions.
kv::LayoutSpec ToyLayoutSpec(kernels::KvFormat format = kernels::KvFormat::kGqaFp8);

struct ToyModelOptions {
  kv::LayoutSpec layout = ToyLayoutSpec();
  int32_t context_tokens = 8192;
  // EOS is the likeliest token at about one position in this many; 0: it never comes.
  uint32_t eos_one_in = 64;
  // Another salt is another model: other keys, other values, other text.
  uint64_t salt = 0;
  // Another flavour is the same model computed in another way, as by another instruction set or
  // weight format: other numerics, other bits.
  uint32_t flavour = 0;
};

// Keys and values of a token are a function of its id, its position and the layer. The logits of a
// row are a function of its position and of all bytes that the block table reaches up to it, scales
// included, in order: a stale, swapped, late or missing page changes the text. Full pages count
// byte for byte, padding included (zero in every page of a pool).
//
// Text is lower-case letters, blanks and full stops; four candidates stand out in every row, so
// that greedy and seeded sampling both say something.
//
// Cost: linear in the bytes of KV a row attends, about 10 GB/s. Errors: INVALID_ARGUMENT for a
// layout or context that cannot be.
absl::StatusOr<std::unique_ptr<ModelRunner>> CreateToyModel(const ToyModelOptions& options);

}  // namespace sluice::engine
