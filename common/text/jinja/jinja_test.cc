#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "text/jinja/parser.h"
#include "text/jinja/template.h"

namespace sluice::text::jinja {
namespace {

using formats::JsonValue;
using ::testing::HasSubstr;

JsonValue Parse(absl::string_view text) {
  auto value = formats::ParseJson(text, "test");
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *std::move(value) : JsonValue();
}

absl::StatusOr<std::vector<Segment>> Render(absl::string_view source, const JsonValue& data) {
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  Variables variables;
  variables.data.assign(data.members().begin(), data.members().end());
  variables.today = absl::CivilDay(2024, 7, 26);
  variables.constants = {{"bos_token", "<s>"}};
  variables.plain_keys = {"role"};
  variables.plain_words = {"user"};
  return (*parsed)->Render(variables);
}

std::string TextOf(const absl::StatusOr<std::vector<Segment>>& segments) {
  if (!segments.ok()) return segments.status().ToString();
  std::string text;
  for (const Segment& segment : *segments) text += segment.text;
  return text;
}

TEST(Jinja, EqualsTheReference) {
  std::ifstream file(SLUICE_TEST_DATA "/golden/chat/jinja.json");
  const JsonValue golden = Parse(std::string(std::istreambuf_iterator<char>(file), {}));
  ASSERT_GE(golden.Find("cases")->array().size(), 280u);
  for (const JsonValue& c : golden.Find("cases")->array()) {
    EXPECT_EQ(TextOf(Render(*c.GetString("template"), *golden.Find("variables"))),
              *c.GetString("output"))
        << *c.GetString("template");
  }
}

// Trusted text in brackets: "[...]".
std::string Marks(absl::string_view source,
                  absl::string_view data = R"({"u":"<x>a","m":{"role":"user","r":"<x>"}})") {
  const auto segments = Render(source, Parse(data));
  EXPECT_TRUE(segments.ok()) << segments.status();
  std::string text;
  if (!segments.ok()) return text;
  for (const Segment& segment : *segments) {
    absl::StrAppend(&text, segment.trusted ? "[" : "", segment.text, segment.trusted ? "]" : "");
  }
  return text;
}

TEST(Jinja, WhatCameWithTheRequestStaysUntrusted) {
  EXPECT_EQ(Marks("<x>{{ u }}<y>"), "[<x>]<x>a[<y>]");
  EXPECT_EQ(Marks("{{ '<x>' + u + '<y>' }}"), "[<x>]<x>a[<y>]");
  EXPECT_EQ(Marks("{{ '<x>' ~ u ~ 1 }}"), "[<x>]<x>a[1]");
  EXPECT_EQ(Marks("{{ (u ~ '<y>')[1:5] }}"), "x>a[<]");
  EXPECT_EQ(Marks("{{ (u ~ '|' ~ u).split('|')[1] }}"), "<x>a");
  EXPECT_EQ(Marks("{{ (' ' ~ u ~ ' ').strip() }}"), "<x>a");
  EXPECT_EQ(Marks("{{ u | upper }}{{ u | title }}{{ u | trim('a') }}"), "<X>A<X>a<x>");
  EXPECT_EQ(Marks("{{ ('a' ~ u ~ 'b') | upper }}"), "[A]<X>A[B]");
  EXPECT_EQ(Marks("{{ u | replace('a', '<y>') }}"), "<x>[<y>]");
  EXPECT_EQ(Marks("{{ '-a-' | replace('a', u) }}"), "[-]<x>a[-]");
  EXPECT_EQ(Marks("{{ [u, '<y>'] | join('|') }}"), "<x>a[|<y>]");
  EXPECT_EQ(Marks("{{ {'k': u} | tojson }}"), "[{\"k\": \"]<x>a[\"}]");
  EXPECT_EQ(Marks("{{ [u, 'b'] }}"), "[[']<x>a[', 'b']]");
  EXPECT_EQ(Marks("{% set v %}<y>{{ u }}{% endset %}{{ v }}"), "[<y>]<x>a");
  EXPECT_EQ(Marks("{% macro f(a) %}<y>{{ a }}{% endmacro %}{{ f(u) }}"), "[<y>]<x>a");
  EXPECT_EQ(Marks("{% set ns = namespace(v=u) %}{{ ns.v }}"), "<x>a");
  EXPECT_EQ(Marks("{{ u | reverse }}{{ u * 2 }}"), "a>x<<x>a<x>a");
  EXPECT_EQ(Marks("{{ u | indent }}{{ 'a\nb' | indent }}"), "<x>a[a\n    b]");
  EXPECT_EQ(Marks("{% for c in u %}{{ c }}{% endfor %}{{ u | list | join }}"), "<x>a<x>a");
  EXPECT_EQ(Marks("{% for k, v in m.items() %}{{ k }}{% endfor %}"), "roler");
  EXPECT_EQ(Marks("{{ u | default('<y>') }}{{ z | default('<y>') }}"), "<x>a[<y>]");
  // Known words at known keys, and tokens of the model, are the template's own.
  EXPECT_EQ(Marks("<|{{ m.role }}|>{{ bos_token }}"), "[<|user|><s>]");
  EXPECT_EQ(Marks("{{ m.role }}", R"({"m":{"role":"<x>"}})"), "<x>");
  EXPECT_EQ(Marks("{{ m.name }}", R"({"m":{"name":"user"}})"), "user");
}

TEST(Jinja, UnknownConstructsAreRefusedWithTheirLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% include 'x' %}", "line 2: the tag 'include' is not supported"},
      {"{% import 'x' as y %}", "the tag 'import'"},
      {"{% extends 'x' %}", "the tag 'extends'"},
      {"{% block x %}{% endblock %}", "the tag 'block'"},
      {"{% call f() %}{% endcall %}", "the tag 'call'"},
      {"{% filter upper %}a{% endfilter %}", "the tag 'filter'"},
      {"{% do x.append(1) %}", "the tag 'do'"},
      {"{% for x in y recursive %}{% endfor %}", "a recursive loop"},
      {"{% for x in y %}{% macro f() %}{% endmacro %}{% endfor %}", "a macro inside a loop"},
      {"\n\n{{ x | pprint }}", "line 3: the filter 'pprint' is not supported"},
      {"{{ x | attr('y') }}", "the filter 'attr'"},
      {"{{ x is sameas(y) }}", "the test 'sameas'"},
      {"{{ x.__class__() }}", "the method '__class__'"},
      {"{{ ''.format(1) }}", "the method 'format'"},
      {"{{ lipsum() }}", "the function 'lipsum'"},
      {"{{ x()() }}", "a call of what is no name"},
      {"{{ f(*x) }}", "a list of arguments in one"},
      {"{{ 2 ** 3 }}", "the operator '**'"},
      {"{{ 0x1F }}", "a number that is not decimal"},
      {"{{ 99999999999999999999 }}", "more than 64 bits"},
      {"{% set x | upper %}a{% endset %}", "a filter of a set block"}};
  for (const auto& [source, part] : cases) {
    const auto parsed = Template::Parse(source);
    EXPECT_TRUE(absl::IsUnimplemented(parsed.status())) << source << ": " << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(part));
  }
}

TEST(Jinja, WrongTemplatesAreRefusedWithTheirLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ x", "line 1: a tag does not end"},
      {"{% if x %}a", "lacks its {% endif %}"},
      {"a\n{# b", "line 2: a comment does not end"},
      {"{{ 'a }}", "a string does not end"},
      {"{% endif %}", "'endif' without its beginning"},
      {"{% for x y %}{% endfor %}", "expected 'in'"},
      {"{{ 1 + }}", "expected a value"},
      {"{{ a b }}", "expected }}"},
      {"{{ (1 }}", "a tag does not end"},
      {"{{ x[] }}", "an empty subscript"},
      {"{{ '\\x4' }}", "the escape \\x is damaged"},
      {"{{ '\\ud800' }}", "the escape \\u is damaged"},
      {"{{ ! }}", "unexpected character '!'"},
      {"{% break %}", "'break' outside of a loop"},
      {"{% raw %}a", "a raw block does not end"},
      {"{{ f(a=1, 2) }}", "without a name behind"}};
  for (const auto& [source, part] : cases) {
    const auto parsed = Template::Parse(source);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << source << ": " << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(part));
  }
}

TEST(Jinja, FailuresOfARenderingNameTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{{ raise_exception('no ' ~ 1) }}", "refuses the conversation: no 1"},
      {"\n{{ missing.a }}", "line 2: 'missing' is undefined, so it has no 'a'"},
      {"{{ missing.strip() }}", "'missing' is undefined"},
      {"{{ 'a' + 1 }}", "'+' of a string and an integer"},
      {"{{ 'a' < 1 }}", "have no order"},
      {"{{ 1 in 2 }}", "'in' an integer"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "more than 64 bits"},
      {"{{ 1.strip() }}", "no method 'strip'"},
      {"{% for x in 1 %}{% endfor %}", "a loop over an integer"},
      {"{{ [1, 'a'] | sort }}", "have no order"},
      {"{{ missing | tojson }}", "JSON of undefined"},
      {"{% set a, b = [1] %}", "1 values for 2 names"},
      {"{% set a = 1 %}{% set a.b = 2 %}", "is no namespace"},
      {"{{ {1: 2} }}", "a key that is no string"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "takes 1 arguments"},
      {"{{ [].pop() }}", "pop of what is not there"},
      {"{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "has no 'b'"},
      {"{{ 'a' | trim(1, 2) }}", "does not take these arguments"}};
  for (const auto& [source, part] : cases) {
    const auto rendered = Render(source, Parse("{}"));
    EXPECT_TRUE(absl::IsInvalidArgument(rendered.status())) << source << ": " << TextOf(rendered);
    EXPECT_THAT(std::string(rendered.status().message()), HasSubstr(part));
  }
}

TEST(Jinja, WorkIsBounded) {
  const char* const sources[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
      "{{ range(9000000000) | length }}",
      "{{ 'x' * 9000000000 }}",
      "{{ [1] * 9000000000 }}",
      "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s | replace('x', "
      "'xx') %}{% endfor %}",
      "{% set l = [1] %}{% for a in range(64) %}{% set _ = l.extend(l) %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
      "{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}",
      "{% set l = [] %}{% set _ = l.append(l) %}{% set m = [] %}{% set _ = m.append(m) %}{{ l == m "
      "}}"};
  for (const char* source : sources) {
    const auto rendered = Render(source, Parse("{}"));
    EXPECT_TRUE(absl::IsInvalidArgument(rendered.status())) << source;
  }
  const std::string deep_blocks = absl::StrCat(
      std::string(0, ' '), absl::StrReplaceAll(std::string(100, 'b'), {{"b", "{% if x %}"}}));
  const std::string sources_deep[] = {
      std::string(100, '(') + "1" + std::string(100, ')'),
      std::string(100, '-') + "1",
      absl::StrReplaceAll(std::string(100, 'n'), {{"n", "not "}}) + "1",
      absl::StrReplaceAll(std::string(1000, 'p'), {{"p", "1 + "}}) + "1",
      "x" + absl::StrReplaceAll(std::string(1000, 'p'), {{"p", ".a"}}),
      "x" + absl::StrReplaceAll(std::string(1000, 'p'), {{"p", " | trim"}}),
      absl::StrReplaceAll(std::string(1000, 'p'), {{"p", "1 if 1 else "}}) + "1",
      absl::StrReplaceAll(std::string(1000, 'p'), {{"p", "x or "}}) + "1"};
  for (const std::string& expression : sources_deep) {
    EXPECT_FALSE(Template::Parse("{{ " + expression + " }}").ok()) << expression.substr(0, 20);
  }
  EXPECT_THAT(std::string(Template::Parse(deep_blocks).status().message()),
              HasSubstr("nested too deeply"));
  EXPECT_FALSE(Template::Parse(std::string(kTemplateBytesMax + 1, 'x')).ok());
}

}  // namespace
}  // namespace sluice::text::jinja
