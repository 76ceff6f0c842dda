"""A sentence hidden in a text that fills the model's context: does the model still find its end when keys and values are stored in a
page format? For every depth and needle the greedy continuation of the sentence's beginning is compared with its end; bf16 pages say
what the model itself can do. With --nll, for models that find nothing: nats a token of the end, with the sentence in the text and without
it (logits of every position are written: for small vocabularies). One line of JSON a format:

  kv_needle.py --sluice build/release/bin/sluice --model PATH --file TEXT --context TOKENS [--formats bf16,gqa_fp8c]
"""
import argparse
import array
import json
import math
import os
import struct
import subprocess
import tempfile

DEPTHS = (0.02, 0.25, 0.5, 0.75, 0.95)
NEEDLES = (
    (" And the name of the well in Gerar was called", " Esek, because they strove with him."),
    (" Now the number of the men that kept the gate was", " four hundred and seventy and three."),
    (" The keys of the house of Hanun lie under the", " olive tree beside the great stone of Zoheleth."),
)


def nll_of_end(path, answer):
    """Mean over the tokens of `answer`, predicted by the rows before the last one."""
    with open(path, "rb") as file:
        header = struct.unpack("<Q", file.read(8))[0]
        rows, width = json.loads(file.read(header))["logits"]["shape"]
        file.seek(8 + header + 4 * width * (rows - 1 - len(answer)))
        total = 0.0
        for token in answer:
            row = array.array("f", file.read(4 * width))
            top = max(row)
            total += top + math.log(sum(math.exp(x - top) for x in row)) - row[token]
    return total / len(answer)


def main():
    parser = argparse.ArgumentParser()
    for name in ("sluice", "model", "file"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--formats", default="bf16")
    parser.add_argument("--nll", action="store_true")
    args = parser.parse_args()

    def sluice(*arguments):
        out = subprocess.run([args.sluice, *arguments], check=True, capture_output=True)
        return json.loads(out.stdout)

    def tokens_of(text):
        return sluice("tokenize", "--model", args.model, "--text", text)

    hay = sluice("tokenize", "--model", args.model, "--file", args.file)
    def nll(kv, tokens, answer):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "logits.safetensors")
            sluice("logits", "--model", args.model, "--kv", kv, "--tokens", ",".join(map(str, tokens + answer)), "--out", out)
            return nll_of_end(out, answer)

    for kv in args.formats.split(","):
        with_needle, without = [], []
        found, whole, asked = 0, 0, 0
        for begin, end in NEEDLES:
            question, answer = tokens_of(begin), tokens_of(end)
            room = args.context - 2 * len(question) - 2 * len(answer)
            if len(hay) < room:
                raise SystemExit(f"{args.file} has {len(hay)} tokens, {room} are needed")
            for depth in DEPTHS:
                at = int(depth * room)
                prompt = hay[:at] + question + answer + hay[at:room] + question
                if args.nll:
                    with_needle.append(nll(kv, prompt, answer))
                    without.append(nll(kv, hay[:room + len(question) + len(answer)] + question, answer))
                    continue
                said = sluice("generate", "--model", args.model, "--kv", kv, "--tokens", ",".join(map(str, prompt)), "--max-tokens",
                              str(len(answer)), "--temperature", "0", "--ignore-eos", "--json")["token_ids"]
                same = [a == b for a, b in zip(said, answer, strict=True)]
                found += same.index(False) if False in same else len(same)
                whole += all(same)
                asked += len(answer)
        if args.nll:
            print(json.dumps({"kv": kv, "needles": len(with_needle), "nll": sum(with_needle) / len(with_needle),
                              "nll_without": sum(without) / len(without)}), flush=True)
            continue
        print(json.dumps({"kv": kv, "needles": len(NEEDLES) * len(DEPTHS), "found_whole": whole, "leading_tokens_found": found / asked}),
              flush=True)


if __name__ == "__main__":
    main()
