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
#include "kernels/linear/weight_format.h"
#include "model/model_files.h"
#include "model/quantize/encode.h"

namespace sluice::model {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using formats::SafetensorsEntry;
using formats::SafetensorsTensor;
using formats::SafetensorsType;

constexpr uint64_t kConfigBytesMax = 4u << 20;

// Whether the format quantises tensors of this role.
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
      return to == QuantizeTo::kFp8 || !config.moe;
    default:
      return false;
  }
}

// The tensors that store one matrix share this name.
std::string BaseOf(absl::string_view name) {
  for (absl::string_view suffix :
       {".weight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_scale_2",
        ".weight_global_scale", ".weight_shape", ".input_scale", ".input_global_scale"}) {
    if (absl::EndsWith(name, suffix)) return std::string(absl::StripSuffix(name, suffix));
  }
  return std::string(name);
}

// What becomes of one tensor, or of the tensors of one matrix.
struct Job {
  enum class Kind { kCopy, kQuantize, kWiden } kind = Kind::kCopy;
  const SafetensorsTensor* source = nullptr;  // kCopy
  TensorView view;                            // the others, rows in the order of the file
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
      : source_(source), out_(out), options_(options), pool_(pool) {}

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
        jobs_.push_back(
            {Job::Kind::kCopy, &tensor, {}, {{tensor.name, tensor.type, tensor.shape}}});
      } else if (!matrix->second.entries.empty()) {  // else taken with an earlier tensor of it
        jobs_.push_back(std::move(matrix->second));
        matrix->second.entries.clear();
      }
    }
    for (Job& job : jobs_) {
      job.bytes = BytesOfEntries(job.entries);
      report_.bytes_after += job.bytes;
      report_.copied += job.kind == Job::Kind::kCopy;
      report_.quantized += job.kind == Job::Kind::kQuantize;
      report_.widened += job.kind == Job::Kind::kWiden;
    }
    return absl::OkStatus();
  }

  // Adds the matrix if it is quantised now or was before.
  absl::Status PlanMatrix(TensorId id, absl::flat_hash_map<std::string, Job>* matrices) const {
    SLUICE_ASSIGN_OR_RETURN(TensorView view, files_->Find(id));
    const bool quantize = Quantizes(options_.to, id.role, files_->config());
    if (!quantize && view.scale_type == kernels::ScaleType::kNone) return absl::OkStatus();
    view.interleaved = {};
    Job job;
    job.kind = quantize ? Job::Kind::kQuantize : Job::Kind::kWiden;
    const std::string base = BaseOf(view.name);
    job.view = std::move(view);
    SLUICE_RETURN_IF_ERROR(SetEntries(base, &job));
    matrices->emplace(base, std::move(job));
    return absl::OkStatus();
  }

  absl::Status SetEntries(const std::string& base, Job* job) const {
    const uint64_t n = static_cast<uint64_t>(job->view.rows);
    const uint64_t k = static_cast<uint64_t>(job->view.columns);
    if (job->kind == Job::Kind::kWiden) {
      job->entries = {{base + ".weight", SafetensorsType::kBF16, {n, k}}};
    } else if (options_.to == QuantizeTo::kFp8) {
      const auto blocks = [](uint64_t size) { return (size + kFp8Block - 1) / kFp8Block; };
      job->entries = {{base + ".weight", SafetensorsType::kF8E4M3, {n, k}},
                      {base + ".weight_scale_inv", SafetensorsType::kF32, {blocks(n), blocks(k)}}};
    } else if (k % kInt4Group != 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", job->view.name, "' has rows of ",
                                                     k, ", INT4 takes multiples of ", kInt4Group));
    } else {
      job->entries = {{base + ".weight_packed", SafetensorsType::kI32, {n, k / 8}},
                      {base + ".weight_scale", SafetensorsType::kBF16, {n, k / kInt4Group}},
                      {base + ".weight_shape", SafetensorsType::kI64, {2}}};
    }
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
      if (job.kind == Job::Kind::kCopy) {
        writer.Append(job.source->data.data(), job.source->data.size());
      } else if (job.kind == Job::Kind::kWiden) {
        Widen(job.view, &writer);
      } else if (options_.to == QuantizeTo::kFp8) {
        WriteFp8(job.view, &writer);
      } else {
        WriteInt4(job.view, &writer);
      }
    }
    return writer.Finish();
  }

  // Calls body(row, values) for rows [begin, end) of a matrix, in parallel.
  template <typename Body>
  void ForRows(const TensorView& view, int64_t begin, int64_t end, Body body) {
    pool_.ParallelFor(end - begin, [&](int64_t first, int64_t last, int) {
      std::vector<float> values(static_cast<size_t>(view.columns));
      for (int64_t row = begin + first; row < begin + last; ++row) {
        kernels::DequantizeRow(view.format, view.Row(row), view.columns, values.data());
        body(row, values.data());
      }
    });
  }

  void Widen(const TensorView& view, formats::SafetensorsWriter* writer) {
    std::vector<uint16_t> out(static_cast<size_t>(view.rows * view.columns));
    ForRows(view, 0, view.rows, [&](int64_t row, const float* values) {
      EncodeBf16Row(values, view.columns, out.data() + row * view.columns);
    });
    writer->Append(out.data(), out.size() * sizeof(out[0]));
  }

  void WriteInt4(const TensorView& view, formats::SafetensorsWriter* writer) {
    const int64_t groups = view.columns / kInt4Group;
    std::vector<uint8_t> codes(static_cast<size_t>(view.rows * view.columns / 2));
    std::vector<uint16_t> scales(static_cast<size_t>(view.rows * groups));
    ForRows(view, 0, view.rows, [&](int64_t row, const float* values) {
      EncodeInt4Row(values, view.columns, codes.data() + row * view.columns / 2,
                    scales.data() + row * groups);
    });
    writer->Append(codes.data(), codes.size());
    writer->Append(scales.data(), scales.size() * sizeof(scales[0]));
    const int64_t shape[2] = {view.rows, view.columns};
    writer->Append(shape, sizeof(shape));
  }

  void WriteFp8(const TensorView& view, formats::SafetensorsWriter* writer) {
    const int64_t k = view.columns;
    const int64_t blocks = (k + kFp8Block - 1) / kFp8Block;
    std::vector<float> strip(static_cast<size_t>(std::min(kFp8Block, view.rows) * k));
    std::vector<uint8_t> codes(strip.size());
    std::vector<float> scales;
    for (int64_t begin = 0; begin < view.rows; begin += kFp8Block) {
      const int64_t rows = std::min(kFp8Block, view.rows - begin);
      ForRows(view, begin, begin + rows, [&](int64_t row, const float* values) {
        std::memcpy(strip.data() + (row - begin) * k, values, static_cast<size_t>(k) * 4);
      });
      const size_t first = scales.size();
      scales.resize(first + static_cast<size_t>(blocks));
      pool_.ParallelFor(blocks, [&](int64_t from, int64_t to, int) {
        for (int64_t b = from; b < to; ++b) {
          const int64_t at = b * kFp8Block;
          scales[first + static_cast<size_t>(b)] = EncodeFp8Block(
              strip.data() + at, rows, std::min(kFp8Block, k - at), k, codes.data() + at);
        }
      });
      writer->Append(codes.data(), static_cast<size_t>(rows * k));
    }
    writer->Append(scales.data(), scales.size() * sizeof(scales[0]));
  }

  // Everything of the model that is neither weights nor the config.
  absl::Status CopyOtherFiles() const {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(source_, error)) {
      const std::string name = entry.path().filename();
      if (!entry.is_regular_file() || absl::EndsWith(name, ".safetensors") ||
          name == "model.safetensors.index.json" || name == "config.json") {
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
    if (options_.to == QuantizeTo::kFp8) {
      return {{"quant_method", "fp8"},
              {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", {kFp8Block, kFp8Block}}};
    }
    json::array ignore = {"lm_head"};
    if (files_->config().moe) {
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
    target->erase("quantization_config");
    if (json::value* nested = target->if_contains("text_config"); nested != nullptr) {
      if (nested->is_object()) target = &nested->as_object();
    }
    (*target)["quantization_config"] = QuantizationConfig();
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
