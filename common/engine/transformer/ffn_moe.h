// Sparse feed-forward: a router picks experts for each row; a shared expert, if there is one, sees
// every row.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/transformer/pass_context.h"
#include "engine/transformer/units.h"
#include "kernels/routing/routing.h"

namespace sluice::engine {

// One pass over a layer: router, counting sort of (row, expert), then one list of work for gate, up
// and SiLU of all experts that have rows, and one for down. The latter is cut by output panels, and
// each piece adds the experts in ascending order to the shared one: the bits of a row depend on
// nothing else in the batch.
//
// `context` and `layers` must outlive it; serves the layers whose weights are MoeWeights.
class FfnMoe final : public FeedForwardUnit {
 public:
  FfnMoe(PassContext& context, absl::Span<const model::LayerWeights> layers);

  ActivationKinds InputKinds(int layer) const override;
  void Forward(int layer) override;

 private:
  // A row that an expert computes.
  struct Entry {
    int64_t row = 0;
    float weight = 0;
  };
  // An expert with rows. Its buffers begin at row `first` of `gate`, `up` and `hidden`.
  struct Active {
    const model::ExpertWeights* expert = nullptr;
    int64_t first = 0;  // of its entries
    int64_t rows = 0;
    int64_t panel_begin = 0;  // of the list of gate and up panels
    const PreparedRows* input = nullptr;
    int64_t input_row = 0;
    float* gate = nullptr;
    float* up = nullptr;
    const PreparedRows* hidden = nullptr;
    int64_t width() const { return expert->gate.n; }
  };

  const model::MoeWeights& weights(int layer) const;
  void Declare(const model::MoeWeights& moe);
  void Route(const model::MoeWeights& moe);
  // Fills entries_ and actives_; returns the panels of the first list.
  int64_t SortByExpert(const model::MoeWeights& moe);
  // Calls body(active, entry) for the entries of all routed experts.
  void ForEachEntry(absl::FunctionRef<void(const Active& active, int64_t entry)> body);
  void GatherInputs();
  void GateUp(int64_t panels);
  void GateUpPanels(const Active& active, int64_t begin, int64_t end);
  void PrepareHidden();
  void Down();
  void DownPanels(int64_t begin, int64_t end);

  PassContext& context_;
  const absl::Span<const model::LayerWeights> layers_;
  const model::MoeConfig& config_;
  kernels::RouterParams router_;

  std::vector<kernels::RoutedExpert> routed_;  // [rows][experts_per_token]
  std::vector<Entry> entries_;                 // by expert, then by row
  std::vector<int64_t> expert_begin_;          // [experts + 1] in entries_
  std::vector<Active> actives_;                // the shared one first, then ascending
  size_t shared_ = 0;                          // how many of them are shared: 0 or 1

  float* logits_ = nullptr;   // [rows][experts]
  float* scratch_ = nullptr;  // [rows][RouterScratchFloats]
  PreparedRows gathered_;     // [entries] inputs of experts whose rows do not follow each other
  float* gate_ = nullptr;     // [entries][intermediate]
  float* up_ = nullptr;
  PreparedRows hidden_;           // [entries] silu(gate) * up
  float* shared_gate_ = nullptr;  // [rows][shared_intermediate]
  float* shared_up_ = nullptr;
  PreparedRows shared_hidden_;  // [rows]
  float* output_ = nullptr;  // [rows][hidden] of the expert that a piece of the second list is at
};

}  // namespace sluice::engine
