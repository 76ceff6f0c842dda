#include "engine/transformer/ffn_moe.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "kernels/elementwise/elementwise.h"

namespace sluice::engine {
namespace {

// Panels of one expert that a piece of the second list takes at least: kernels run several at once.
constexpr int64_t kDownPanels = 4;

ActivationKinds InputOf(const model::ExpertWeights& expert) {
  ActivationKinds kinds;
  kinds.Add(expert.gate);
  kinds.Add(expert.up);
  return kinds;
}

ActivationKinds HiddenOf(const model::ExpertWeights& expert) {
  ActivationKinds kinds;
  kinds.Add(expert.down);
  return kinds;
}

kernels::RouterParams RouterOf(const model::MoeConfig& config) {
  kernels::RouterParams router;
  router.experts = config.experts;
  router.topk = config.experts_per_token;
  router.groups = config.groups;
  router.topk_groups = config.topk_groups;
  router.sigmoid = config.scoring == model::Scoring::kSigmoid;
  router.normalize = config.normalize;
  router.scaling = config.scaling;
  return router;
}

}  // namespace

FfnMoe::FfnMoe(PassContext& context, absl::Span<const model::LayerWeights> layers)
    : context_(context), layers_(layers), config_(*context.config.moe), router_(RouterOf(config_)) {
  for (const model::LayerWeights& layer : layers) {
    if (const auto* moe = std::get_if<model::MoeWeights>(&layer.ffn); moe != nullptr) Declare(*moe);
  }
  const int64_t entries = config_.experts_per_token;
  Workspace* const workspace = &context.workspace;
  workspace->Add(&logits_, config_.experts);
  workspace->Add(&scratch_, kernels::RouterScratchFloats(router_));
  gathered_.AddTo(workspace, entries);
  workspace->Add(&gate_, entries * config_.intermediate);
  workspace->Add(&up_, entries * config_.intermediate);
  hidden_.AddTo(workspace, entries);
  workspace->Add(&shared_gate_, config_.shared_intermediate);
  workspace->Add(&shared_up_, config_.shared_intermediate);
  shared_hidden_.AddTo(workspace);
  workspace->Add(&output_, context.config.hidden);
}

void FfnMoe::Declare(const model::MoeWeights& moe) {
  const int64_t hidden = context_.config.hidden;
  ActivationKinds router;
  router.Add(moe.router);
  context_.input.Declare(router, hidden);
  for (const model::ExpertWeights& expert : moe.experts) {
    context_.input.Declare(InputOf(expert), hidden);
    gathered_.Declare(InputOf(expert), hidden);
    hidden_.Declare(HiddenOf(expert), config_.intermediate);
  }
  for (const model::ExpertWeights& expert : moe.shared) {
    context_.input.Declare(InputOf(expert), hidden);
    shared_hidden_.Declare(HiddenOf(expert), config_.shared_intermediate);
  }
}

const model::MoeWeights& FfnMoe::weights(int layer) const {
  return std::get<model::MoeWeights>(layers_[static_cast<size_t>(layer)].ffn);
}

ActivationKinds FfnMoe::InputKinds(int layer) const {
  const model::MoeWeights& moe = weights(layer);
  ActivationKinds kinds;
  kinds.Add(moe.router);
  for (const model::ExpertWeights& expert : moe.experts) kinds.Add(InputOf(expert));
  for (const model::ExpertWeights& expert : moe.shared) kinds.Add(InputOf(expert));
  return kinds;
}

void FfnMoe::Forward(int layer) {
  const model::MoeWeights& moe = weights(layer);
  Route(moe);
  const int64_t panels = SortByExpert(moe);
  GatherInputs();
  GateUp(panels);
  PrepareHidden();
  Down();
  for (const Active& active : actives_) {
    context_.weight_bytes_read += static_cast<uint64_t>(active.expert->bytes());
  }
}

void FfnMoe::Route(const model::MoeWeights& moe) {
  const int64_t experts = config_.experts;
  const float* bias = moe.correction_bias.empty() ? nullptr : moe.correction_bias.data();
  routed_.resize(static_cast<size_t>(context_.rows() * router_.topk));
  context_.Multiply(moe.router, context_.input, context_.rows(), logits_, experts);
  const int64_t scratch_floats = kernels::RouterScratchFloats(router_);
  context_.ForEachRow([&](int64_t row, int) {
    kernels::RouteRow(router_, logits_ + row * experts, bias, scratch_ + row * scratch_floats,
                      routed_.data() + row * router_.topk);
  });
}

int64_t FfnMoe::SortByExpert(const model::MoeWeights& moe) {
  const size_t experts = moe.experts.size();
  expert_begin_.assign(experts + 1, 0);
  for (const kernels::RoutedExpert& routed : routed_) {
    ++expert_begin_[static_cast<size_t>(routed.expert) + 1];
  }
  for (size_t e = 0; e < experts; ++e) expert_begin_[e + 1] += expert_begin_[e];
  entries_.resize(routed_.size());
  for (size_t i = 0; i < routed_.size(); ++i) {
    const size_t expert = static_cast<size_t>(routed_[i].expert);
    const int64_t row = static_cast<int64_t>(i) / router_.topk;
    entries_[static_cast<size_t>(expert_begin_[expert]++)] = {row, routed_[i].weight};
  }
  actives_.clear();
  shared_ = moe.shared.size();
  int64_t panels = 0;
  const auto add = [&](Active active) {
    active.panel_begin = panels;
    panels += active.expert->gate.panels();
    actives_.push_back(active);
  };
  for (const model::ExpertWeights& shared : moe.shared) {
    add({&shared, 0, context_.rows(), 0, &context_.input, 0, shared_gate_, shared_up_,
         &shared_hidden_});
  }
  int64_t first = 0;
  for (size_t e = 0; e < experts; ++e) {
    const int64_t end = expert_begin_[e];  // the sort has moved each begin to its end
    if (end > first) {
      const int64_t at = first * config_.intermediate;
      add({&moe.experts[e], first, end - first, 0, &gathered_, first, gate_ + at, up_ + at,
           &hidden_});
    }
    first = end;
  }
  return panels;
}

void FfnMoe::ForEachEntry(absl::FunctionRef<void(const Active& active, int64_t entry)> body) {
  context_.pool.ParallelFor(
      static_cast<int64_t>(entries_.size()), [&](int64_t begin, int64_t end, int) {
        auto active =
            std::upper_bound(actives_.begin() + static_cast<ptrdiff_t>(shared_), actives_.end(),
                             begin, [](int64_t entry, const Active& a) { return entry < a.first; });
        --active;
        for (int64_t i = begin; i < end; ++i) {
          while (i >= active->first + active->rows) ++active;
          body(*active, i);
        }
      });
}

void FfnMoe::GatherInputs() {
  for (size_t i = shared_; i < actives_.size(); ++i) {
    Active& active = actives_[i];
    const Entry* const entries = entries_.data() + active.first;
    if (entries[active.rows - 1].row - entries[0].row + 1 != active.rows) continue;
    active.input = &context_.input;
    active.input_row = entries[0].row;
  }
  const int64_t hidden = context_.config.hidden;
  ForEachEntry([&](const Active& active, int64_t entry) {
    if (active.input != &gathered_) return;
    const ActivationKinds kinds = InputOf(*active.expert);
    for (const kernels::ActivationKind kind : kernels::kAllActivationKinds) {
      if (!kinds.Has(kind)) continue;
      std::memcpy(gathered_.Row(kind, hidden, entry),
                  context_.input.Row(kind, hidden, entries_[static_cast<size_t>(entry)].row),
                  static_cast<size_t>(kernels::PreparedRowBytes(kind, hidden)));
    }
  });
}

void FfnMoe::GateUp(int64_t panels) {
  const int64_t rows = static_cast<int64_t>(entries_.size()) + context_.rows();
  const int64_t mean = rows / static_cast<int64_t>(actives_.size()) + 1;
  const int64_t panel_ns = 2 * PanelNanoseconds(actives_.back().expert->gate, mean);
  context_.pool.ParallelFor(
      panels,
      [&](int64_t begin, int64_t end, int) {
        const auto after = std::upper_bound(
            actives_.begin(), actives_.end(), begin,
            [](int64_t panel, const Active& active) { return panel < active.panel_begin; });
        for (auto active = after - 1; active != actives_.end() && active->panel_begin < end;
             ++active) {
          const int64_t first = std::max(begin - active->panel_begin, int64_t{0});
          const int64_t last = std::min(end - active->panel_begin, active->expert->gate.panels());
          GateUpPanels(*active, first, last);
        }
      },
      kChunkNanoseconds / panel_ns + 1);
}

void FfnMoe::GateUpPanels(const Active& active, int64_t begin, int64_t end) {
  const int64_t hidden = context_.config.hidden;
  const int64_t width = active.width();
  const auto input = [&](const kernels::PackedMatrix& matrix) {
    return active.input->Row(matrix.activations, hidden, active.input_row);
  };
  const kernels::PackedMatrix& gate = active.expert->gate;
  const kernels::PackedMatrix& up = active.expert->up;
  kernels::Forward(gate, input(gate), active.rows, begin, end, active.gate, width);
  kernels::Forward(up, input(up), active.rows, begin, end, active.up, width);
  const int64_t column = begin * kernels::kPanelRows;
  const int64_t columns = std::min(end * kernels::kPanelRows, width) - column;
  for (int64_t row = 0; row < active.rows; ++row) {
    float* const g = active.gate + row * width + column;
    kernels::SiluMultiply(context_.path, g, active.up + row * width + column, columns, g);
  }
}

void FfnMoe::PrepareHidden() {
  const auto prepare = [this](const Active& active, int64_t row) {
    active.hidden->Prepare(context_.path, HiddenOf(*active.expert),
                           active.gate + row * active.width(), active.width(), active.first + row);
  };
  if (shared_ == 1) {
    context_.ForEachRow([&](int64_t row, int) { prepare(actives_[0], row); });
  }
  ForEachEntry([&](const Active& active, int64_t entry) { prepare(active, entry - active.first); });
}

void FfnMoe::Down() {
  const int64_t panels = actives_.back().expert->down.panels();
  const int64_t even = panels / context_.pool.workers();
  context_.pool.ParallelFor(
      panels, [&](int64_t begin, int64_t end, int) { DownPanels(begin, end); },
      std::max<int64_t>(std::min(kDownPanels, even), 1));
}

void FfnMoe::DownPanels(int64_t begin, int64_t end) {
  const int64_t hidden = context_.config.hidden;
  const int64_t column = begin * kernels::kPanelRows;
  const int64_t columns = std::min(end * kernels::kPanelRows, hidden) - column;
  const auto multiply = [&](const Active& active, float* out) {
    const kernels::PackedMatrix& down = active.expert->down;
    kernels::Forward(down, active.hidden->Row(down.activations, active.width(), active.first),
                     active.rows, begin, end, out, hidden);
  };
  if (shared_ == 1) {
    multiply(actives_[0], context_.y);
  } else {
    for (int64_t row = 0; row < context_.rows(); ++row) {
      std::fill_n(context_.y + row * hidden + column, columns, 0.0f);
    }
  }
  for (size_t i = shared_; i < actives_.size(); ++i) {
    const Active& active = actives_[i];
    multiply(active, output_);
    for (int64_t j = 0; j < active.rows; ++j) {
      const Entry& entry = entries_[static_cast<size_t>(active.first + j)];
      kernels::AddScaledInPlace(context_.path, output_ + j * hidden + column, entry.weight, columns,
                                context_.y + entry.row * hidden + column);
    }
  }
}

}  // namespace sluice::engine
