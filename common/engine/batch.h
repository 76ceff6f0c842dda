// One step's batch: which tokens of which sequences, as segments for the model, and the report of
// pages as layers finish.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/sequence.h"

namespace sluice::engine {

struct BatchEntry {
  Sequence* sequence = nullptr;
  uint32_t tokens = 0;
  // Row of the logits, or -1 when none is wanted.
  int row = -1;
};

// Lets another thread stop a pass whose only sequence is `id`. Interrupt is thread-safe; the rest
// belongs to the loop.
class InterruptFlag {
 public:
  // A pass begins; `alone` is null when several sequences share it.
  void Begin(const SequenceId* alone) {
    interrupted_.store(false);
    alone_.store(alone == nullptr ? kNobody : alone->value());
  }
  void End() { alone_.store(kNobody); }
  // Does nothing unless the sequence is alone in the pass that runs now.
  void Interrupt(SequenceId sequence) {
    if (alone_.load() == sequence.value()) interrupted_.store(true);
  }
  bool interrupted() const { return interrupted_.load(); }

 private:
  static constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();
  std::atomic<uint64_t> alone_{kNobody};
  std::atomic<bool> interrupted_{false};
};

// Sets the logits rows of the entries and returns the segments. The entries' sequences must not
// change while they are used.
std::vector<Segment> BuildSegments(std::vector<BatchEntry>& batch, int* rows);

// Reports pages whose last prompt token is computed in this pass, one layer group after the other.
class LayerReporter final : public ForwardHooks {
 public:
  LayerReporter(const std::vector<BatchEntry>& batch, int layers, int layer_group,
                EngineEvents& events, const InterruptFlag& interrupt)
      : batch_(batch),
        layers_(layers),
        layer_group_(layer_group),
        events_(events),
        interrupt_(interrupt) {}

  void LayersDone(int begin, int end) override;
  bool Cancelled() override { return interrupt_.interrupted(); }

 private:
  const std::vector<BatchEntry>& batch_;
  const int layers_;
  const int layer_group_;
  EngineEvents& events_;
  const InterruptFlag& interrupt_;
  int reported_ = 0;  // layers told to the events so far
};

// Tells the events that layers [layer_begin, layer_end) of blocks [sequence.reported, final_blocks)
// are final, if the sequence offers its pages. Does not move `reported`.
void ReportPages(const Sequence& sequence, uint32_t final_blocks, int layer_begin, int layer_end,
                 EngineEvents& events);

}  // namespace sluice::engine
