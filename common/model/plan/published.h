// Shapes of published models by name, for planning without their files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"

namespace sluice::model {

struct PublishedModel {
  ModelConfig config;
  std::string weights;  // the format it is published in, as PlanOptions::weights
};

// By name without owner, in any case: "GLM-4.6", "moonshotai/Kimi-K2.6". NOT_FOUND lists the names.
absl::StatusOr<PublishedModel> FindPublishedModel(absl::string_view name);
std::vector<std::string> PublishedModelNames();

}  // namespace sluice::model
