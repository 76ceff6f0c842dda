#include "engine/batch.h"

#include <utility>

#include "base/check.h"

namespace sluice::engine {

std::vector<Segment> BuildSegments(std::vector<BatchEntry>& batch, int* rows) {
  std::vector<Segment> segments;
  segments.reserve(batch.size());
  *rows = 0;
  for (BatchEntry& entry : batch) {
    const Sequence& sequence = *entry.sequence;
    Segment segment;
    segment.tokens =
        absl::MakeConstSpan(sequence.tokens()).subspan(sequence.computed(), entry.tokens);
    segment.first_position = static_cast<int32_t>(sequence.computed());
    segment.pages = sequence.page_data();
    const bool wanted = entry.tokens == sequence.remaining() && sequence.samples();
    segment.logits = wanted ? LogitsWanted::kLast : LogitsWanted::kNone;
    entry.row = wanted ? (*rows)++ : -1;
    segments.push_back(segment);
  }
  return segments;
}

void LayerReporter::LayersDone(int begin, int end) {
  SLUICE_CHECK(begin >= reported_ && end > begin && end <= layers_)
      << "layers " << begin << ".." << end << " after " << reported_;
  if (end - reported_ < layer_group_ && end < layers_) return;
  for (const BatchEntry& entry : batch_) {
    const uint32_t final_blocks =
        entry.sequence->FinalBlocks(entry.sequence->computed() + entry.tokens);
    ReportPages(*entry.sequence, final_blocks, reported_, end, events_);
  }
  reported_ = end;
}

void ReportPages(const Sequence& sequence, uint32_t final_blocks, int layer_begin, int layer_end,
                 EngineEvents& events) {
  if (!sequence.spec().offer_pages || final_blocks <= sequence.reported) return;
  std::vector<FinalPage> pages;
  pages.reserve(final_blocks - sequence.reported);
  for (uint32_t block = sequence.reported; block < final_blocks; ++block) {
    pages.push_back({block, sequence.page(block).Share()});
  }
  events.OnPagesFinal(sequence.id(), std::move(pages), layer_begin, layer_end);
}

}  // namespace sluice::engine
