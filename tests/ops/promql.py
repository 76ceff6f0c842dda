"""What a PromQL query asks for: its selectors, and the labels it groups by. No evaluator: that is Prometheus' own."""
import re

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[A-Za-z_:][\w:]*|[0-9][\w.]*|\[[^\]]*\]|=~|!~|!=|[<>]=|\S')
NAME = re.compile(r"[A-Za-z_:][\w:]*$")
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "group", "stddev", "topk", "bottomk", "quantile"}
KEYWORDS = AGGREGATIONS | {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}


class Selector:
    """`metric{matchers}`: `text` as Prometheus takes it, `labels` that its matchers name."""

    def __init__(self, metric, matchers):
        self.metric = metric
        self.labels = [matchers[i] for i in range(len(matchers)) if i == 0 or matchers[i - 1] == ","]
        self.text = metric + ("{" + "".join(matchers) + "}" if matchers else "")


def parse(query):
    """(selectors, groupings): a grouping is (labels, the selectors that must have them)."""
    tokens = TOKEN.findall(query)
    selectors, groupings, scalars = [], [], []  # selectors with the index of their token; spans that have no labels
    i = 0
    while i < len(tokens):
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        if tokens[i] in ("by", "on") and following == "(":
            close = matching(tokens, i + 1)
            groupings.append((i, tokens[i + 2:close:2], close + 1))
            i = close + 1
        elif tokens[i] in ("without", "ignoring"):
            raise ValueError(f"'{tokens[i]}' depends on labels that nobody lists; use 'by' or 'on': {query}")
        elif NAME.match(tokens[i]) and tokens[i] not in KEYWORDS and following != "(":
            close = matching(tokens, i + 1) if following == "{" else i
            selectors.append((i, Selector(tokens[i], tokens[i + 2:close])))
            i = close + 1
        else:
            if tokens[i] == "scalar":
                scalars.append((i, matching(tokens, i + 1)))
            i += 1
    resolved = []
    for at, labels, begin in groupings:
        if tokens[at] == "on":
            covered = [s for index, s in selectors if not any(begin < index < end for begin, end in scalars)]
        else:
            if tokens[at - 1] not in AGGREGATIONS or tokens[begin] != "(":
                raise ValueError(f"write 'sum by (labels) (...)': {query}")
            end = matching(tokens, begin)
            covered = [s for index, s in selectors if begin < index < end]
        resolved.append((labels, covered))
    return [s for _, s in selectors], resolved


def matching(tokens, opening):
    pair = {"(": ")", "{": "}"}[tokens[opening]]
    depth = 0
    for i in range(opening, len(tokens)):
        depth += (tokens[i] == tokens[opening]) - (tokens[i] == pair)
        if depth == 0:
            return i
    raise ValueError(f"no '{pair}' for the '{tokens[opening]}' in {' '.join(tokens)}")
