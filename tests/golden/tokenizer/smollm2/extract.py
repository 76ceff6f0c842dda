"""Writes the vocabulary of SmolLM2-135M-Instruct from its GGUF file, and the prompts of its reference run as cases.

Run: python extract.py MODEL.gguf greedy.json
tokens.txt holds the tokens that are not the result of a merge (one a line, ids from 0); every merge of merges.txt then
adds the next id. cases.json: [{"message"?, "text", "ids_special"}]; a message is the user turn that renders to the text.
"""
import json, struct, sys

TYPES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def read_metadata(path):
    with open(path, "rb") as f:
        def number(fmt):
            return struct.unpack(fmt, f.read(struct.calcsize(fmt)))[0]

        def value(kind):
            if kind == 8:
                return f.read(number("<Q")).decode()
            if kind == 9:
                element, count = number("<I"), number("<Q")
                return [value(element) for _ in range(count)]
            return number(TYPES[kind])

        assert f.read(4) == b"GGUF" and number("<I") == 3
        number("<Q")
        return {value(8): value(number("<I")) for _ in range(number("<Q"))}


metadata = read_metadata(sys.argv[1])
tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
head = len(tokens) - len(merges)
assert tokens[head:] == [m.replace(" ", "") for m in merges]
assert metadata["tokenizer.ggml.token_type"] == [3] * 17 + [1] * (len(tokens) - 17)
open("tokens.txt", "w").write("\n".join(tokens[:head]) + "\n")
open("merges.txt", "w").write("\n".join(merges) + "\n")
open("chat_template.txt", "w").write(metadata["tokenizer.chat_template"])
json.dump([{"message": c["input"] if c["kind"] == "chat" else None, "text": c["prompt"], "ids_special": c["ids"]}
           for c in json.load(open(sys.argv[2]))],
          open("cases.json", "w"), indent=0)
