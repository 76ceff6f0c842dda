// Configuration of the services: a YAML file and overrides become a checked message with every
// default filled in.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sluice/v1/config.pb.h"

namespace sluice::config {

// Where settings come from; later ones win.
struct Sources {
  std::string file;                    // path of a YAML file; empty: none
  std::vector<std::string> overrides;  // "path.to.field=value"
};

// The name that clients use when model.served_name is not set: "dir/SmolLM2-135M.Q4_1.gguf" ->
// "SmolLM2-135M.Q4_1"; "models/tiny/" -> "tiny".
std::string NameOfModel(absl::string_view path);

// Errors of all three: NOT_FOUND for a missing file; INVALID_ARGUMENT naming the setting, its value
// and what is allowed. `role` ("prefill" or "decode") is the worker's binary; it gives the default
// of the field of that name.
absl::StatusOr<v1::WorkerConfig> LoadWorkerConfig(const Sources& sources, absl::string_view role);
absl::StatusOr<v1::RouterConfig> LoadRouterConfig(const Sources& sources);
absl::StatusOr<v1::CacheManagerConfig> LoadCacheManagerConfig(const Sources& sources);

// Default and range of one field. One row per field of every configuration message.
struct FieldRule {
  const char* message;
  const char* field;
  const char* fallback = "";  // as YAML; empty: none, or one that depends on the service
  uint64_t min = 0;           // of numbers
  uint64_t max = 0;
  const char* allowed = "";  // of texts and list items: "a|b|c"; empty: any
};
absl::Span<const FieldRule> AllRules();

// Fills in the defaults of `message` and everything below it, and checks ranges and choices.
// `error(path, what)` makes the status for what is wrong with the setting at `path`.
using ErrorMaker =
    absl::FunctionRef<absl::Status(const std::string& path, const std::string& what)>;
absl::Status Complete(google::protobuf::Message* message, ErrorMaker error);

}  // namespace sluice::config
