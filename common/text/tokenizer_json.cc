#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/json_util.h"
#include "text/split_pattern.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary_builder.h"

namespace sluice::text {
namespace {

namespace json = boost::json;

constexpr size_t kSplitsMax = 16;

absl::Status Refuse(absl::string_view node, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer.json: ", node, " ", why, "; supported is byte-level BPE"));
}

// A pipeline stage is null, one node, or a Sequence whose `list` holds nodes. Calls `read(node,
// type)` for each.
template <typename Read>
absl::Status ForEachNode(const json::object& parent, absl::string_view stage,
                         absl::string_view list, Read read) {
  const json::value* node = FindValue(parent, stage);
  if (node == nullptr) return absl::OkStatus();
  if (!node->is_object()) return Refuse(stage, "is no object");
  const json::object& object = node->get_object();
  SLUICE_ASSIGN_OR_RETURN(const std::string type, GetString(object, "type", ""));
  if (type != "Sequence") return read(object, type);
  const json::value* nodes = FindValue(object, list);
  if (nodes == nullptr || !nodes->is_array()) return Refuse(stage, "is a Sequence without nodes");
  for (const json::value& child : nodes->get_array()) {
    if (!child.is_object()) return Refuse(stage, "has a node that is no object");
    SLUICE_ASSIGN_OR_RETURN(const std::string child_type,
                            GetString(child.get_object(), "type", ""));
    SLUICE_RETURN_IF_ERROR(read(child.get_object(), child_type));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const json::array& merges, VocabularyBuilder* builder) {
  for (const json::value& merge : merges) {
    if (merge.is_string()) {
      SLUICE_RETURN_IF_ERROR(builder->AddMergeLine(View(merge.get_string())));
      continue;
    }
    const json::array* pair = merge.if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() ||
        !(*pair)[1].is_string()) {
      return Refuse("model.merges", "has an entry that is neither \"a b\" nor [a, b]");
    }
    SLUICE_RETURN_IF_ERROR(
        builder->AddMerge(View((*pair)[0].get_string()), View((*pair)[1].get_string())));
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const json::object& root, TokenizerSpec* spec) {
  const json::value* model = FindValue(root, "model");
  if (model == nullptr || !model->is_object()) return Refuse("model", "is missing");
  const json::object& object = model->get_object();
  SLUICE_ASSIGN_OR_RETURN(const std::string type, GetString(object, "type", "BPE"));
  if (type != "BPE") return Refuse(absl::StrCat("model type '", type, "'"), "is not supported");
  SLUICE_ASSIGN_OR_RETURN(const bool byte_fallback, GetBool(object, "byte_fallback", false));
  if (byte_fallback) return Refuse("model.byte_fallback", "is not supported");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SLUICE_ASSIGN_OR_RETURN(const std::string value, GetString(object, affix, ""));
    if (!value.empty()) return Refuse(absl::StrCat("model.", affix), "is not supported");
  }
  if (const json::value* dropout = FindValue(object, "dropout");
      dropout != nullptr && !(dropout->is_double() && dropout->get_double() == 0.0)) {
    return Refuse("model.dropout", "is not supported");
  }
  SLUICE_ASSIGN_OR_RETURN(spec->ignore_merges, GetBool(object, "ignore_merges", false));
  const json::value* vocabulary = FindValue(object, "vocab");
  const json::value* merges = FindValue(object, "merges");
  if (vocabulary == nullptr || !vocabulary->is_object() || merges == nullptr ||
      !merges->is_array()) {
    return Refuse("model", "lacks the object 'vocab' or the array 'merges'");
  }
  VocabularyBuilder builder(spec);
  for (const auto& entry : vocabulary->get_object()) {
    const int64_t id = entry.value().is_int64() ? entry.value().get_int64() : -1;
    SLUICE_RETURN_IF_ERROR(builder.AddToken(View(entry.key()), id));
  }
  SLUICE_RETURN_IF_ERROR(ReadMerges(merges->get_array(), &builder));
  SLUICE_ASSIGN_OR_RETURN(const std::string unknown, GetString(object, "unk_token", ""));
  if (!unknown.empty()) {
    const TokenId id = builder.Find(unknown);
    if (id < 0) return Refuse(absl::StrCat("model.unk_token '", unknown, "'"), "is no token");
    spec->unknown = id;
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const json::object& root, TokenizerSpec* spec) {
  const json::value* added = FindValue(root, "added_tokens");
  if (added == nullptr) return absl::OkStatus();
  if (!added->is_array()) return Refuse("added_tokens", "is no array");
  for (const json::value& entry : added->get_array()) {
    const json::value* id = entry.is_object() ? FindValue(entry.get_object(), "id") : nullptr;
    const int64_t number = id != nullptr && id->is_int64() ? id->get_int64() : -1;
    SLUICE_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(entry, number));
    spec->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizer(const json::object& root, TokenizerSpec* spec) {
  return ForEachNode(root, "normalizer", "normalizers",
                     [&](const json::object&, const std::string& type) {
                       if (type != "NFC") {
                         return Refuse(absl::StrCat("normalizer '", type, "'"), "is not supported");
                       }
                       spec->nfc = true;
                       return absl::OkStatus();
                     });
}

absl::Status ReadSplit(const json::object& node, TokenizerSpec* spec) {
  SLUICE_ASSIGN_OR_RETURN(const std::string behavior, GetString(node, "behavior", ""));
  SLUICE_ASSIGN_OR_RETURN(const bool invert, GetBool(node, "invert", false));
  if (behavior != "Isolated" || invert) {
    return Refuse(absl::StrCat("pre_tokenizer Split with behavior '", behavior, "'",
                               invert ? " and invert" : ""),
                  "is not supported");
  }
  const json::value* pattern = FindValue(node, "pattern");
  if (pattern == nullptr || !pattern->is_object() ||
      FindValue(pattern->get_object(), "Regex") == nullptr) {
    return Refuse("pre_tokenizer Split without a Regex pattern", "is not supported");
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string regex, GetString(pattern->get_object(), "Regex", ""));
  SLUICE_ASSIGN_OR_RETURN(std::string translated, PcreFromOniguruma(regex));
  spec->splits.push_back(std::move(translated));
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const json::object& root, TokenizerSpec* spec) {
  bool byte_level = false;
  const auto read = [&](const json::object& node, const std::string& type) -> absl::Status {
    if (byte_level) return Refuse("pre_tokenizer node behind ByteLevel", "is not supported");
    if (spec->splits.size() >= kSplitsMax) return Refuse("pre_tokenizer", "has too many nodes");
    if (type == "Split") return ReadSplit(node, spec);
    if (type == "Digits") {
      SLUICE_ASSIGN_OR_RETURN(const bool individual, GetBool(node, "individual_digits", false));
      spec->splits.push_back(individual ? EachDigitSplit() : EachDigitSplit() + "+");
      return absl::OkStatus();
    }
    if (type == "ByteLevel") {
      SLUICE_ASSIGN_OR_RETURN(const bool prefix_space, GetBool(node, "add_prefix_space", true));
      SLUICE_ASSIGN_OR_RETURN(const bool use_regex, GetBool(node, "use_regex", true));
      if (prefix_space)
        return Refuse("pre_tokenizer ByteLevel with add_prefix_space", "is not supported");
      if (use_regex) spec->splits.push_back(Gpt2Split());
      byte_level = true;
      return absl::OkStatus();
    }
    return Refuse(absl::StrCat("pre_tokenizer '", type, "'"), "is not supported");
  };
  SLUICE_RETURN_IF_ERROR(ForEachNode(root, "pre_tokenizer", "pretokenizers", read));
  if (!byte_level) return Refuse("pre_tokenizer without ByteLevel", "is not supported");
  return absl::OkStatus();
}

// TemplateProcessing may put one token, the bos, before the text and nothing else.
absl::Status ReadTemplateProcessing(const json::object& node, TokenizerSpec* spec) {
  const json::value* single = FindValue(node, "single");
  if (single == nullptr || !single->is_array()) {
    return Refuse("post_processor TemplateProcessing", "has no array 'single'");
  }
  bool seen_text = false;
  for (const json::value& item : single->get_array()) {
    const json::object* object = item.if_object();
    if (object != nullptr && FindValue(*object, "Sequence") != nullptr && !seen_text) {
      seen_text = true;
      continue;
    }
    const json::value* token = object == nullptr ? nullptr : FindValue(*object, "SpecialToken");
    if (token == nullptr || !token->is_object() || seen_text || spec->add_bos) {
      return Refuse("post_processor TemplateProcessing that adds more than one leading token",
                    "is not supported");
    }
    SLUICE_ASSIGN_OR_RETURN(const std::string name, GetString(token->get_object(), "id", ""));
    SLUICE_ASSIGN_OR_RETURN(spec->bos, ResolveToken(*spec, "post_processor token", name));
    spec->add_bos = true;
  }
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const json::object& root, TokenizerSpec* spec) {
  return ForEachNode(
      root, "post_processor", "processors", [&](const json::object& node, const std::string& type) {
        // ByteLevel only trims offsets, which nobody reads here.
        if (type == "ByteLevel") return absl::OkStatus();
        if (type == "TemplateProcessing") return ReadTemplateProcessing(node, spec);
        return Refuse(absl::StrCat("post_processor '", type, "'"), "is not supported");
      });
}

absl::Status ReadDecoder(const json::object& root) {
  return ForEachNode(root, "decoder", "decoders", [](const json::object&, const std::string& type) {
    if (type == "ByteLevel") return absl::OkStatus();
    return Refuse(absl::StrCat("decoder '", type, "'"), "is not supported");
  });
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromTokenizerJson(absl::string_view tokenizer_json,
                                                    absl::string_view tokenizer_config_json) {
  SLUICE_ASSIGN_OR_RETURN(const json::object root, ParseJsonObject(tokenizer_json, "tokenizer.json",
                                                                   kTokenizerFileBytesMax));
  TokenizerSpec spec;
  SLUICE_RETURN_IF_ERROR(ReadModel(root, &spec));
  SLUICE_RETURN_IF_ERROR(ReadAddedTokens(root, &spec));
  SLUICE_RETURN_IF_ERROR(ReadNormalizer(root, &spec));
  SLUICE_RETURN_IF_ERROR(ReadPreTokenizer(root, &spec));
  SLUICE_RETURN_IF_ERROR(ReadPostProcessor(root, &spec));
  SLUICE_RETURN_IF_ERROR(ReadDecoder(root));
  if (!tokenizer_config_json.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        const json::object config,
        ParseJsonObject(tokenizer_config_json, "tokenizer_config.json", kTokenizerFileBytesMax));
    SLUICE_RETURN_IF_ERROR(ApplyTokenizerConfig(config, &spec));
  }
  return spec;
}

}  // namespace sluice::text
