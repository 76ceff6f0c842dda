// YAML <-> messages of config.proto, by reflection. Nothing here knows a particular setting.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace sluice::config {

// Where one setting stands in its document.
struct YamlPlace {
  int line = 0;    // from 1
  int column = 0;  // from 1; of an item of a list: behind its "- "
};
// By path: "tenants[2].limits.weight".
using YamlPlaces = absl::flat_hash_map<std::string, YamlPlace>;

// Merges a YAML document into `message`: keys are field names, lists replace repeated fields.
// Errors: INVALID_ARGUMENT with "source:line:column", the path of the setting, and for an unknown
// key the nearest known one. `places`, unless null, gets those of all settings, for errors that are
// found later.
absl::Status MergeYaml(absl::string_view yaml, absl::string_view source,
                       google::protobuf::Message* message, YamlPlaces* places = nullptr);

// Applies one "path.to.field=value"; the value is YAML, so lists are written [a, b]. Errors as
// MergeYaml.
absl::Status MergeOverride(absl::string_view assignment, google::protobuf::Message* message);

// All set fields in the order of config.proto. Reading it back gives an equal message.
std::string ToYaml(const google::protobuf::Message& message);

}  // namespace sluice::config
