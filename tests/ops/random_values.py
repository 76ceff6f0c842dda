"""Values that values.schema.json allows, drawn at random, with a liking for what breaks YAML, templates and shells."""
import re

# Every pattern of the schema finds some of these; texts without a pattern get all of them.
TEXTS = ["", "a", "x-1", "true", "null", "on", "no", "123", "0x1f", "1e3", "1.5", "2026-01-01", "0o17", ".inf", "~", "a.b", "a: b", "a #b",
         "- a", "{{ .Values.split }}", "$(POD_NAME)", "`id`", "'", '"', "\\", "a\nb: c", "tab\there", " lead", "trail ", "größe", "日本語 😀",
         "&a", "*a", "!!int 3", "|", ">-", "[a", "{a: b}", "@a", "%a", "?", "a" * 40, "b" * 63, "a.b/c", "C_3.x", "example.org/team",
         "registry.example.org:5000/team/sluice", "sha256:" + "0a" * 32, "/models", "/models/a: {b", "/models/{{x}}", "toy",
         "/srv", "/srv, type: File}", "rdma/hca", "sluice_a_b", "5s", "250ms", "1m", "0%", "25%", "100%", "250m", "1Gi", "0.5", "8192",
         "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "10.0.0.0/8", "fd00::/8", "*.example.org", "llm.example.org", "eth0"]
SHARE = 0.35  # of the optional properties that are drawn


def matching(pattern, longest=253):
    found = [text for text in TEXTS if re.search(pattern, text) and len(text) <= longest]
    if not found:
        raise ValueError(f"random_values.TEXTS has nothing for {pattern}")
    return found


class Drawer:
    """Draws for a node of the schema. `listed`: inside a list, where no defaults of values.yaml fill in what is left out."""

    def __init__(self, schema, random):
        self.definitions, self.random = schema["definitions"], random

    def draw(self, node, listed=False):
        if "$ref" in node:
            return self.draw(self.definitions[node["$ref"].rpartition("/")[2]], listed)
        if "allOf" in node:
            return self.draw(node["allOf"][0], listed)
        if "enum" in node:
            return self.random.choice(node["enum"])
        kind = self.random.choice(node["type"] if isinstance(node["type"], list) else [node["type"]])
        return getattr(self, "draw_" + kind)(node, listed)

    def draw_object(self, node, listed):
        if "properties" in node:
            properties = node["properties"]
            names = [name for name in properties if self.random.random() < SHARE][:node.get("maxProperties")]
            names += [self.random.choice(list(properties))] if len(names) < node.get("minProperties", 0) else []
            names += node.get("required", []) if listed else []
            return {name: self.draw(properties[name], listed) for name in dict.fromkeys(names)}
        if "patternProperties" in node:
            (pattern, value), = node["patternProperties"].items()
            return {self.random.choice(matching(pattern)): self.draw(value)}
        if "propertyNames" in node:
            keys = self.random.sample(matching(self.definitions["labelKey"]["pattern"]), 2)
            return {key: self.draw(node["additionalProperties"]) for key in keys}
        return {}

    def draw_array(self, node, _):
        items = [self.draw(node["items"], listed=True) for _ in range(self.random.randrange(3))]
        return [item for i, item in enumerate(items) if item not in items[:i]]

    def draw_string(self, node, _):
        return self.random.choice(matching(node.get("pattern", ""), node.get("maxLength", 253)))

    def draw_integer(self, node, _):
        low, high = node.get("minimum", 0), node.get("maximum", 99)
        return self.random.choice([low, high, self.random.randrange(low, high + 1, node.get("multipleOf", 1))])

    def draw_number(self, _, __):
        return self.random.choice([0.1, 2, 1000000])

    def draw_boolean(self, _, __):
        return self.random.random() < 0.5

    def draw_null(self, _, __):
        return None


def values(schema, random):
    """One set of values, in which the most frequent quarrels between values are settled."""
    properties = schema["properties"]
    drawn = {name: Drawer(schema, random).draw(node) for name, node in properties.items() if random.random() < SHARE}
    drawn.setdefault("auth", {})["existingSecret"] = random.choice(["sluice-keys", "123", "true", "a.b"])
    drawn["tls"] = {"secretPrefix": random.choice(["", "tls", "123"])}
    drawn["insecurePlaintext"] = not drawn["tls"]["secretPrefix"]
    path = random.choice(matching(properties["model"]["properties"]["path"]["pattern"]))
    volume = random.choice([{"existingClaim": "123"}, {"hostPath": "/srv, type: File}"}, {"image": "registry.example.org/models:1"}])
    drawn["model"] = {"path": path, "servedName": random.choice(TEXTS), "volume": {} if path == "toy" else volume}
    return drawn
