#include "model/quantize/quantize.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "formats/mapped_file.h"
#include "formats/safetensors.h"
#include "model/kv_centre.h"
#include "model/model_files.h"
#include "model/quantize/encode.h"
#include "model/quantize/matrix_coder.h"

namespace sluice::model {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using formats::SafetensorsEntry;
using formats::SafetensorsTensor;

constexpr uint64_t kConfigBytesMax = 4u << 20;

Coding CodingOf(QuantizeTo to) {
  switch (to) {
    case QuantizeTo::kInt4:
    case QuantizeTo::kInt4All:
      return Coding::kInt4;
    case QuantizeTo::kFp8:
      return Coding::kFp8;
    case QuantizeTo::kLossless:
      break;
  }
  return Coding::kPalette;
}

// Whether INT4 or FP8 reaches tensors of this role.
bool Quantizes(QuantizeTo to, TensorRole role, const ModelConfig& config) {
  switch (role) {
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
    case TensorRole::kExpertDown:
      return true;
    case TensorRole::kQ:
    case TensorRole::kK:
    case TensorRole::kV:
    case TensorRole::kO:
    case TensorRole::kQA:
    case TensorRole::kQB:
    case TensorRole::kKvA:
    case TensorRole::kKvB:
    case TensorRole::kIndexQ:
    case TensorRole::kIndexK:
    case TensorRole::kGate:
    case TensorRole::kUp:
    case TensorRole::kDown:
    case TensorRole::kSharedGate:
    case TensorRole::kSharedUp:
    case TensorRole::kSharedDown:
      return to != QuantizeTo::kInt4 || !config.moe;
    default:
      return false;
  }
}

// The tensors that store one matrix share this name.
std::string BaseOf(absl::string_view name) {
  for (absl::string_view suffix :
       {".weight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_scale_2",
        ".weight_global_scale", ".weight_shape", ".input_scale", ".input_global_scale",
        ".weight_bf16p", ".weight_palette"}) {
    if (absl::EndsWith(name, suffix)) return std::string(absl::StripSuffix(name, suffix));
  }
  return std::string(name);
}

// What becomes of one tensor, or of the tensors of one matrix.
struct Job {
  const SafetensorsTensor* copied = nullptr;  // as it is; else `matrix` is written
  CodedMatrix matrix;
  std::vector<SafetensorsEntry> entries;
  uint64_t bytes = 0;
};

uint64_t BytesOfEntries(const std::vector<SafetensorsEntry>& entries) {
  uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : entries) {
    uint64_t size = formats::BytesOf(entry.type);
    for (uint64_t dim : entry.shape) size *= dim;
    bytes += size;
  }
  return bytes;
}

class Quantizer {
 public:
  Quantizer(absl::string_view source, absl::string_view out, const QuantizeOptions& options,
            device::ThreadPool& pool)
      : source_(source), out_(out), options_(options), coding_(CodingOf(options.to)), pool_(pool) {}

  absl::StatusOr<QuantizeReport> Run() {
    if (IsGgufPath(source_)) {
      return absl::UnimplementedError(
          absl::StrCat(source_, ": only a folder with safetensors can be quantised"));
    }
    SLUICE_ASSIGN_OR_RETURN(files_, ModelFiles::Open(source_));
    SLUICE_ASSIGN_OR_RETURN(tensors_, formats::Safetensors::OpenFolder(source_));
    SLUICE_RETURN_IF_ERROR(PlanJobs());
    std::error_code error;
    if (fs::exists(out_, error)) {
      return absl::AlreadyExistsError(absl::StrCat(out_, " exists; name a new folder"));
    }
    fs::create_directories(out_, error);
    if (error) return absl::InternalError(absl::StrCat("creating ", out_, ": ", error.message()));
    SLUICE_RETURN_IF_ERROR(WriteShards());
    SLUICE_RETURN_IF_ERROR(CopyOtherFiles());
    SLUICE_RETURN_IF_ERROR(WriteConfig());
    return report_;
  }

 private:
  absl::Status PlanJobs() {
    absl::flat_hash_map<std::string, Job> matrices;  // by base name
    SLUICE_RETURN_IF_ERROR(
        ForEachTensor(files_->config(), [&](TensorId id) { return PlanMatrix(id, &matrices); }));
    for (const SafetensorsTensor& tensor : tensors_.tensors()) {
      report_.bytes_before += tensor.data.size();
      const auto matrix = matrices.find(BaseOf(tensor.name));
      if (matrix == matrices.end()) {
        Job job;
        job.copied = &tensor;
        job.entries = {{tensor.name, tensor.type, tensor.shape}};
        jobs_.push_back(std::move(job));
      } else if (!matrix->second.entries.empty()) {  // else taken with an earlier tensor of it
        jobs_.push_back(std::move(matrix->second));
        matrix->second.entries.clear();
      }
    }
    for (Job& job : jobs_) {
      job.bytes = BytesOfEntries(job.entries);
      report_.bytes_after += job.bytes;
      const bool copied = job.copied != nullptr;
      report_.copied += copied;
      report_.quantized += !copied && job.matrix.coding == coding_;
      report_.widened += !copied && job.matrix.coding != coding_;
    }
    return absl::OkStatus();
  }

  // Adds the matrix if it is quantised now or was before.
  absl::Status PlanMatrix(TensorId id, absl::flat_hash_map<std::string, Job>* matrices) {
    Job job;
    TensorView& view = job.matrix.view;
    SLUICE_ASSIGN_OR_RETURN(view, files_->Find(id));
    view.interleaved = {};  // rows stay in the order of the file
    job.matrix.coding = coding_;
    if (coding_ == Coding::kPalette) {
      const bool matrix = view.rows > 1 && view.format == kernels::WeightFormat::kBf16;
      if (!matrix || !FindPalette(pool_, &job.matrix)) return absl::OkStatus();
    } else if (!Quantizes(options_.to, id.role, files_->config())) {
      if (view.scale_type == kernels::ScaleType::kNone) return absl::OkStatus();
      job.matrix.coding = Coding::kBf16;
    }
    const std::string base = BaseOf(view.name);
    SLUICE_ASSIGN_OR_RETURN(job.entries, EntriesOf(job.matrix, base));
    matrices->emplace(base, std::move(job));
    return absl::OkStatus();
  }

  // Cuts the jobs into files of at most shard_bytes_max (or one job) and writes them.
  absl::Status WriteShards() {
    std::vector<size_t> begins = {0};
    uint64_t bytes = 0;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (bytes > 0 && bytes + jobs_[i].bytes > options_.shard_bytes_max) {
        begins.push_back(i);
        bytes = 0;
      }
      bytes += jobs_[i].bytes;
    }
    const size_t shards = begins.size();
    begins.push_back(jobs_.size());
    json::object weight_map;
    for (size_t s = 0; s < shards; ++s) {
      const std::string name =
          shards == 1 ? "model.safetensors"
                      : absl::StrFormat("model-%05d-of-%05d.safetensors", s + 1, shards);
      SLUICE_RETURN_IF_ERROR(WriteShard(name, begins[s], begins[s + 1]));
      for (size_t i = begins[s]; i < begins[s + 1]; ++i) {
        for (const SafetensorsEntry& entry : jobs_[i].entries) weight_map[entry.name] = name;
      }
    }
    if (shards == 1) return absl::OkStatus();
    const json::object index = {{"metadata", {{"total_size", report_.bytes_after}}},
                                {"weight_map", std::move(weight_map)}};
    return WriteText("model.safetensors.index.json", json::serialize(index));
  }

  absl::Status WriteShard(const std::string& name, size_t begin, size_t end) {
    std::vector<SafetensorsEntry> entries;
    for (size_t i = begin; i < end; ++i) {
      entries.insert(entries.end(), jobs_[i].entries.begin(), jobs_[i].entries.end());
    }
    SLUICE_ASSIGN_OR_RETURN(
        auto writer, formats::SafetensorsWriter::Create(absl::StrCat(out_, "/", name), entries));
    for (size_t i = begin; i < end; ++i) {
      const Job& job = jobs_[i];
      if (job.copied != nullptr) {
        writer.Append(job.copied->data.data(), job.copied->data.size());
      } else {
        WriteMatrix(job.matrix, pool_, &writer);
      }
    }
    return writer.Finish();
  }

  // Everything of the model that is neither weights nor the config.
  absl::Status CopyOtherFiles() const {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(source_, error)) {
      const std::string name = entry.path().filename();
      const bool weights =
          absl::EndsWith(name, ".safetensors") && entry.path() != KvCentrePath(source_);
      if (!entry.is_regular_file() || weights || name == "model.safetensors.index.json" ||
          name == "config.json") {
        continue;
      }
      fs::copy_file(entry.path(), fs::path(out_) / name, error);
      if (error) break;
    }
    if (!error) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("copying the files of ", source_, " to ", out_, ": ", error.message()));
  }

  json::object QuantizationConfig() const {
    if (coding_ == Coding::kPalette) return {{"quant_method", "sluice-lossless"}};
    if (coding_ == Coding::kFp8) {
      return {{"quant_method", "fp8"},
              {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", {kFp8Block, kFp8Block}}};
    }
    json::array ignore = {"lm_head"};
    if (files_->config().moe && options_.to == QuantizeTo::kInt4All) {
      ignore = {"lm_head", "re:.*mlp\\.gate$"};
    } else if (files_->config().moe) {
      ignore = {"lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"};
    }
    const json::object weights = {{"num_bits", 4},
                                  {"type", "int"},
                                  {"strategy", "group"},
                                  {"group_size", kInt4Group},
                                  {"symmetric", true}};
    return {{"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"ignore", std::move(ignore)},
            {"config_groups",
             {{"group_0", {{"targets", json::array{"Linear"}}, {"weights", weights}}}}}};
  }

  absl::Status WriteConfig() const {
    SLUICE_ASSIGN_OR_RETURN(
        const std::string text,
        formats::ReadTextFile(absl::StrCat(source_, "/config.json"), kConfigBytesMax));
    json::error_code error;
    json::value config = json::parse(text, error);
    if (error || !config.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(source_, "/config.json is no JSON object"));
    }
    json::object* target = &config.as_object();
    const bool keep = coding_ == Coding::kPalette;  // what is quantised stays so
    if (!keep) target->erase("quantization_config");
    if (json::value* nested = target->if_contains("text_config"); nested != nullptr) {
      if (nested->is_object()) target = &nested->as_object();
    }
    if (!keep || !target->contains("quantization_config")) {
      (*target)["quantization_config"] = QuantizationConfig();
    }
    return WriteText("config.json", json::serialize(config));
  }

  absl::Status WriteText(const std::string& name, const std::string& text) const {
    const std::string path = absl::StrCat(out_, "/", name);
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (file) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("writing ", path, " failed"));
  }

  const std::string source_;
  const std::string out_;
  const QuantizeOptions& options_;
  const Coding coding_;
  device::ThreadPool& pool_;
  std::unique_ptr<ModelFiles> files_;
  formats::Safetensors tensors_;
  std::vector<Job> jobs_;
  QuantizeReport report_;
};

}  // namespace

absl::StatusOr<QuantizeReport> QuantizeFolder(absl::string_view source, absl::string_view out,
                                              const QuantizeOptions& options,
                                              device::ThreadPool& pool) {
  return Quantizer(source, out, options, pool).Run();
}

}  // namespace sluice::model
