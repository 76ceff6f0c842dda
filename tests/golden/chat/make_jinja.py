"""Writes jinja.json: templates, the variables they see, and what python3-jinja2 makes of them.   make_jinja.py OUT

The environment is the one chat templates are run in: trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes.
"""
import datetime
import json
import re
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import SandboxedEnvironment

DATA = {
    "s": " Hello, Wörld! ", "empty": "", "e": "a\"b\\c\n<é>", "n": 7, "f": 2.5, "t": True, "no": None,
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "d": {"b": 1, "a": {"x": [1, None, True]}, "ü": "v"},
    "people": [{"name": "Ann", "age": 3}, {"name": "bob", "age": 1}, {"name": "Cy"}],
    "messages": [{"role": "user", "content": "q<think>r</think>a"}, {"role": "tool", "content": [{"type": "text", "text": "x"}]}],
}
EXPRESSIONS = """
1 + 2 * 3 - 4 // 3|7 // -2|-7 % 3|7 % -3|7 / 2|2.5 * 2|1e3 is defined|-n|- -n|n + f|t + 1|'a' + 'b'|[1] + [2]|(1,) + (2,)
'ab' * 3|3 * 'ab'|[0] * 3|-1 * 'x'|'a' ~ 1 ~ none ~ true ~ 2.0 ~ missing|n == 7.0|t == 1|'a' < 'b'|1 < 2 < 3|3 > 2 > 2|l == [3, 1, 2]
d == {"ü": "v", "b": 1, "a": {"x": [1, none, true]}}|missing == nothing|none == false|'W' in s|'x' not in d|'b' in d|2 in l|'q' in missing
not n|not missing|n and 'yes'|empty or 'no'|missing or none|'a' if t else 'b'|'a' if no|('a' if no) is undefined|1 if 0 else 2 if 0 else 3
s.strip()|s.lstrip()|s.rstrip(' !')|s.strip(' H!')|'xxaxx'.strip('x')|s.split()|'a,b,c'.split(',')|'a,b,c'.split(',', 1)|'a,b,c'.rsplit(',', 1)
'  a  b '.split()|'  a  b  c '.split(none, 1)|'a\\nb\\r\\nc'.splitlines()|'a\\nb'.splitlines(true)|s.upper()|s.lower()|'hELLO wORLD'.title()|'hELLO'.capitalize()
'hello'.replace('l', 'L')|'hello'.replace('l', 'L', 1)|'ab'.replace('', '-')|'hello'.find('l')|'hello'.rfind('l')|'hello'.find('z')|'höl'.find('l')|'banana'.count('an')
'abc'.startswith('ab')|'abc'.endswith(('x', 'c'))|'abc'.removeprefix('ab')|'abc'.removesuffix('x')|'12'.isdigit()|''.isdigit()|'-'.join(['a', 'b'])
d.b|d['b']|d.get('b')|d.get('z')|d.get('z', 5)|d.a.x[0]|d.missing|d.missing is defined|d['a']['x'][-1]|d.items() | list|d.keys() | list|d.values() | list
messages[0].role|messages.0.role|messages[-1]['content'][0].text|messages[5] is defined|messages[0].content.split('</think>')[-1]|l[0]|l[-1]|l[1:]|l[:-1]|l[::-1]|l[5:]|l[-2:]|l[::2]|l[2:0:-1]
s[1:6]|s[::-1]|s[-3:]|'Wörld'[1]|'abc'[10:]|'abc'[-10:2]|'abc'[1:1]|range(3) | list|range(1, 4) | list|range(3, 0, -1) | list|range(0) | list
s | trim|'xxaxx' | trim('x')|s | length|l | count|d | length|missing | length|s | upper|s | lower|'hELLO wORLD-foo (bar)' | title|'hELLO' | capitalize
'aXa' | replace('a', 'b')|'aXa' | replace('a', 'b', 1)|5 | replace('5', '6')|l | join(', ')|l | join|people | join('; ', attribute='name')|l | first|l | last|[] | first|'abc' | first
l | list|'abc' | list|d | list|5 | string|none | string|2.0 | string|'7' | int|'x' | int|'x' | int(3)|7.9 | int|'2.5' | float|'x' | float|-5 | abs|missing | default('x')
empty | default('x')|empty | default('x', true)|no | default('x')|no | d('x', true)|d | items | list|missing | items | list|d | dictsort|l | sort|l | sort(reverse=true)|words | sort
words | sort(case_sensitive=true)|people | sort(attribute='name') | map(attribute='name') | list|words | unique | list|l | reverse | list|'abc' | reverse|l | min|l | max|l | sum|people | map(attribute='age', default=0) | sum
people | map(attribute='name') | join(',')|words | map('upper') | list|words | map('replace', 'a', 'z') | list|l | select('gt', 1) | list|l | reject('odd') | list|[0, 1, '', 'x'] | select | list
people | selectattr('age') | map(attribute='name') | list|people | selectattr('age', 'defined') | list | length|people | rejectattr('name', 'equalto', 'bob') | map(attribute='name') | list|words | reject('in', ['a', 'b']) | list
d | tojson|e | tojson|e | tojson(ensure_ascii=true)|d | tojson(indent=2)|d | tojson(separators=(',', ':'))|d | tojson(sort_keys=true)|[] | tojson(indent=4)|1e-7 | tojson|[1.0, 1e16, 0.1] | tojson
'a\\nb\\n\\nc' | indent|'a\\nb' | indent(2, true)|'a\\n\\nb' | indent(width=1, blank=true)|d|l|words|(1, 'a')|(1,)|{'k': 'it\\'s'}|["q\\"'"]|{}|[]|()
n is defined|missing is undefined|no is none|n is not none|t is true|t is boolean|n is integer|f is float|n is number|s is string|d is mapping|l is iterable|s is iterable|n is iterable|missing is iterable
l is sequence|d is sequence|n is sequence|no is sequence|3 is odd|3 is even|4 is divisibleby 2|4 is divisibleby(3)|n is eq 7|n is equalto(8)|n is ne 8|n is gt 3|n is le 7|'a' is in(words)|'a' is in words|'abc' is lower|'ABC' is upper
namespace(a=1).a|namespace({'a': 2}).a|dict(a=1, b='x')|dict({'a': 1}, b=2)|strftime_now('%d %b %Y')|"tab\\there"|'\\u00e9\\x41'|'\\d'|"a" "b"|true|True|None|[1, 2,]|{'a': 1,}|(1 if t else 2) + 1|n|f|'%s' is defined
""".replace("\n", "|")
TEMPLATES = [
    "a\n{% if t %}\n  b\n{% endif %}\nc\n", "  {% if t %}x{% endif %}\n  y", "{%- if t -%}\n x \n{%- endif -%} z", "a {#- c -#} b", "a\n  {# c #}\nb",
    "{% if no %}1{% elif n == 7 %}2{% else %}3{% endif %}", "{% if no %}1{% elif no %}2{% elif no %}3{% endif %}|",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [3, 4] %}{{ loop.depth }}{{ a }}{{ b }}{% if b == 3 %}{% continue %}{% endif %};{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }},{% endfor %}", "{% for c in 'aé' %}[{{ c }}]{% endfor %}", "{% for x in missing %}{{ x }}{% endfor %}|",
    "{% set x = 1 %}{% for i in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x %}<{{ n }}>{% endset %}{{ x }}{{ x is string }}", "{% if t %}{% set y = 2 %}{% endif %}{{ y }}",
    "{% macro m(a, b='B') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}", "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% set g = 5 %}{% macro m() %}{{ g }}{% endmacro %}{{ m() }}{% set g = 6 %}{{ m() }}", "{% raw %}{{ x }} {% if %}{% endraw %}!", "{%- raw -%} a {%- endraw -%} b", "{{ '{{' }}{{ '}}' }}{{ {'a': {'b': 1}}['a'] }}",
    "{% set q = [] %}{% set _ = q.append(1) %}{% set _ = q.append(2) %}{{ q }}{{ q.pop(0) }}{{ q }}{{ q.pop() }}{{ q }}", "{% set q = [3, 1] %}{% set _ = q.extend([1, 2]) %}{% set _ = q.insert(1, 9) %}{{ q }}{{ q.index(1) }}{{ q.count(1) }}",
    "{{ n }}\n{{ n }}\n", "{% if t %}\n{{ n }}\n{% endif %}", "line\r\n{% if t %}\r\nx\r\n{% endif %}y", "{{- n -}}  {{ n }}",
    "\t{%+ if t %}x{% endif %}\n", "{% if t +%}\nx{% endif %}", "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'tool' and not ns.found %}{% set ns.found = true %}{{ m.content[0]['text'] }}{% endif %}{% endfor %}",
    "{{ 'a' if t else 'b' ~ 'c' }}{{ ('a' if no else 'b') ~ 'c' }}", "{{ n | string ~ 'x' | upper }}{{ -n | abs }}{{ not n is none }}{{ 'x' in s | upper | list }}",
    "{% for m in messages %}{{ loop.last and 'L' or 'N' }}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}", "{{ {'a': 1, 'b': [1, 'x', none, true, 1.5]} }}",
]


def environment():
    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["strftime_now"] = lambda form: datetime.date(2024, 7, 26).strftime(form)
    return env


def main():
    env = environment()
    cases = []
    for template in split_expressions() + TEMPLATES:
        output = env.from_string(template).render(**json.loads(json.dumps(DATA)))
        cases.append({"template": template, "output": output})
    json.dump({"variables": DATA, "cases": cases}, open(sys.argv[1], "w"), ensure_ascii=False, indent=0)
    print(len(cases), "cases")


def split_expressions():
    """Expressions stand between bars without spaces; a filter's bar has spaces around it."""
    return ["{{ " + e + " }}" for e in re.split(r"(?<! )\|(?! )", EXPRESSIONS.strip("|")) if e]


if __name__ == "__main__":
    main()
