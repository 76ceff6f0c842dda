#include "text/output/tool_schemas.h"

#include <gtest/gtest.h>

#include "text/output/call_parser.h"
#include "text/output/output_format.h"

namespace sluice::text {
namespace {

ToolSchemas Schemas(absl::string_view tools) {
  const auto parsed = formats::ParseJson(tools, "tools");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return ToolSchemas(*parsed);
}

TEST(ToolSchemas, KindsOfParameters) {
  const ToolSchemas schemas = Schemas(R"([{"function":{"name":"f","parameters":{
      "$defs":{"S":{"type":"string"},"L":{"$ref":"#/$defs/L"},"N":{"anyOf":[{"$ref":"#/$defs/S"},{"type":"null"}]}},
      "properties":{
        "string":{"type":"string"},"number":{"type":"number"},"list":{"type":["integer","null"]},
        "enum":{"enum":["a",1,null]},"const":{"const":true},
        "any":{"anyOf":[{"type":"string"},{"type":"integer"}]},"open":{"oneOf":[{"type":"string"},{}]},
        "ref":{"$ref":"#/$defs/S"},"nested":{"$ref":"#/$defs/N"},"loop":{"$ref":"#/$defs/L"},
        "lost":{"$ref":"#/$defs/X"},"object":{"properties":{}},"array":{"items":{}},"free":{},"bool":true}}}}])");
  const std::pair<const char*, int> cases[] = {{"string", kJsonString},
                                               {"number", kJsonNumber | kJsonInteger},
                                               {"list", kJsonInteger | kJsonNull},
                                               {"enum", kJsonString | kJsonInteger | kJsonNull},
                                               {"const", kJsonBool},
                                               {"any", kJsonString | kJsonInteger},
                                               {"open", 0},
                                               {"ref", kJsonString},
                                               {"nested", kJsonString | kJsonNull},
                                               {"loop", 0},
                                               {"lost", 0},
                                               {"object", kJsonObject},
                                               {"array", kJsonArray},
                                               {"free", 0},
                                               {"bool", 0},
                                               {"missing", 0}};
  for (const auto& [name, kinds] : cases) EXPECT_EQ(schemas.KindsOf("f", name), kinds) << name;
  EXPECT_EQ(schemas.KindsOf("g", "string"), 0);
}

TEST(ToolSchemas, InfersTheToolFromItsArguments) {
  const ToolSchemas schemas = Schemas(R"([
      {"function":{"name":"a","parameters":{"properties":{"x":{},"y":{}},"required":["x","y"]}}},
      {"function":{"name":"b","parameters":{"properties":{"x":{}},"required":["x"]}}},
      {"function":{"name":"c","parameters":{"properties":{"z":{}}}}}, {"function":{}}, 7])");
  EXPECT_EQ(schemas.Infer({"x"}), "b");
  EXPECT_EQ(schemas.Infer({"x", "y"}), "a");
  EXPECT_EQ(schemas.Infer({"z", "q"}), "c");
  EXPECT_EQ(schemas.Infer({"q"}), "");
  EXPECT_EQ(schemas.Infer({}), "");
  EXPECT_EQ(Schemas(R"([{"function":{"name":"only"}}])").Infer({"q"}), "only");
}

TEST(OutputFormat, FollowsTheTextOfTheTemplate) {
  EXPECT_EQ(FormatOfTemplate("<|tool_calls_section_begin|></think>"), OutputFormat::kKimi);
  EXPECT_EQ(FormatOfTemplate("<tool_call><arg_key>"), OutputFormat::kGlm);
  EXPECT_EQ(FormatOfTemplate("<tool_call>\\n{\"name\": \"x\", \"arguments\": "),
            OutputFormat::kHermes);
  EXPECT_EQ(FormatOfTemplate("<tool_call><function="), OutputFormat::kPlain);
  EXPECT_EQ(FormatOfTemplate("<｜tool▁calls▁begin｜></think>"), OutputFormat::kDeepSeek);
  EXPECT_EQ(FormatOfTemplate("<｜tool▁calls▁begin｜>```json</think>"), OutputFormat::kThinking);
  EXPECT_EQ(FormatOfTemplate("<think>\n</think>"), OutputFormat::kThinking);
  EXPECT_EQ(FormatOfTemplate("<|im_start|>"), OutputFormat::kPlain);
}

TEST(CallId, IsUniqueAndRepeatable) {
  EXPECT_EQ(CallId("r/0", 1), CallId("r/0", 1));
  EXPECT_NE(CallId("r/0", 1), CallId("r/0", 2));
  EXPECT_NE(CallId("r/0", 1), CallId("r/1", 1));
  EXPECT_EQ(CallId("r/0", 1).size(), 29u);
}

}  // namespace
}  // namespace sluice::text
