// Any text is read as a chat template and run. Whatever it does with what came with the request,
// none of that may become trusted.
#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "base/check.h"
#include "text/jinja/template.h"

namespace {

using sluice::formats::JsonValue;

// Stands for text of a client: no template and no operation on its own text can make it.
constexpr absl::string_view kClient = "\xEE\x80\x80";

const JsonValue& Data() {
  static const auto* const kData = new JsonValue(*sluice::formats::ParseJson(
      "{\"messages\":[{\"role\":\"system\",\"content\":\"\xEE\x80\x80\"},"
      "{\"role\":\"user\",\"content\":\"<think> \xEE\x80\x80 </think>\xEE\x80\x80\\n\"},"
      "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\xEE\x80\x80\"}],\"tool_"
      "calls\":"
      "[{\"id\":\"i\xEE\x80\x80\",\"function\":{\"name\":\"f\",\"arguments\":{\"\xEE\x80\x80\":[1,"
      "2.5,null,true,\"\xEE\x80\x80\"]}}}]},"
      "{\"role\":\"tool\",\"content\":\"\xEE\x80\x80\",\"tool_call_id\":\"i\xEE\x80\x80\"}],"
      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\xEE\x80\x80\"}}],\"add_"
      "generation_prompt\":true}",
      "data"));
  return *kData;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view source(reinterpret_cast<const char*>(data), size);
  // Nor may it write that character itself.
  if (absl::StrContains(source, kClient) || absl::StrContains(source, "\\u") ||
      absl::StrContains(source, "\\U")) {
    return 0;
  }
  const auto parsed = sluice::text::jinja::Template::Parse(source);
  if (!parsed.ok()) {
    SLUICE_CHECK(absl::IsInvalidArgument(parsed.status()) ||
                 absl::IsUnimplemented(parsed.status()));
    return 0;
  }
  sluice::text::jinja::Variables variables;
  variables.data.assign(Data().members().begin(), Data().members().end());
  variables.plain_keys = {"role"};
  variables.plain_words = {"system", "user", "assistant", "tool"};
  const auto segments = (*parsed)->Render(variables);
  if (!segments.ok()) {
    SLUICE_CHECK(absl::IsInvalidArgument(segments.status()));
    return 0;
  }
  for (const auto& segment : *segments) {
    SLUICE_CHECK(!segment.trusted || !absl::StrContains(segment.text, kClient));
  }
  return 0;
}
