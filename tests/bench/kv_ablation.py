"""What each choice in a KV page format is worth: keys and values are rounded as a format would store them, everything else is float32,
and the predictions are compared with those over bf16 pages. Latent formats for a folder, formats of grouped query heads for a GGUF
file. Needs numpy. One line of JSON a format:

  kv_ablation.py --sluice build/release/bin/sluice --model FILE.gguf --calibrate OTHER.txt --file TEXT [--tokens 4096] [--only NAMES]
"""
import argparse
import json
import subprocess

import kv_models
import numpy as np
from kv_models import F32, round_bf16

TINY = F32(1e-30)


def e4m3(x):
    size = np.minimum(np.abs(x), F32(448))
    step = np.exp2(np.clip(np.floor(np.log2(np.maximum(size, TINY))), -6, 8) - 3)
    return np.copysign(np.minimum(np.rint(size / step) * step, 448), x).astype(F32)


def largest(x):
    return np.maximum(np.abs(x).max(-1, keepdims=True), TINY)


def power_of_two(x, clip=1.0):
    """The smallest with clip * max / scale <= 448."""
    return np.exp2(np.ceil(np.log2(largest(x) * F32(clip) / 448))).astype(F32)


def fp8(x, scale=None):
    scale = power_of_two(x) if scale is None else scale
    return e4m3(x / scale) * scale


def best_of(candidates, x, error):
    """Rows of x in e4m3, each with the one of its candidate scales whose error is least."""
    stored = np.stack([fp8(x, scale) for scale in candidates])
    picked = error(stored, x).argmin(0)
    return np.take_along_axis(stored, picked[None, ..., None], 0)[0]


def eighths(x):
    """The 8 scales of 3 mantissa bits from the smallest that fits on."""
    exact = largest(x) / F32(448)
    unit = np.exp2(np.floor(np.log2(exact)) - 3)
    first = np.ceil(exact / unit)
    out = []
    for i in range(8):
        n = first + i
        out.append((np.where(n > 16, 16 + 2 * (n - 16), n) * unit).astype(F32))
    return out


def squares(stored, x):
    return ((stored - x) ** 2).sum(-1)


def of_largest(stored, x):
    at = np.abs(x).argmax(-1)[..., None]
    return np.abs(np.take_along_axis(stored, at[None], -1) - np.take_along_axis(x, at, -1)[None])[..., 0]


def int8(x, clip=1.0):
    scale = largest(x) * F32(clip) / 127
    rounded = round_bf16(scale)
    scale = np.where(rounded < scale, round_bf16(scale * F32(1 + 2**-8)), rounded)
    return np.clip(np.rint(x / scale), -127, 127).astype(F32) * scale


def tensor_fp8(x):
    return fp8(x, F32(np.abs(x).max() / 448))



def sink(quantise):
    """The first token in two terms."""
    def store(x):
        out = quantise(x)
        out[0] += quantise(x[:1] - out[:1])[0]
        return out
    return store


class Centred:
    """The vectors that `store` subtracts before rounding and adds after: the mean of a calibration text, its first 4 tokens left out."""

    def __init__(self, model, tokens):
        self.seen = {}
        model.logits(tokens, self.keep)

    def keep(self, layer, k, v):
        self.seen[layer] = [round_bf16(x[4:].mean(0)) for x in (k, v)]
        return k, v

    def __call__(self, store):
        def stored(layer, k, v):
            ck, cv = self.seen[layer]
            return store(k - ck) + ck, store(v - cv) + cv
        return stored


def plain(store_k, store_v=None):
    return lambda _, k, v: (store_k(k), (store_v or store_k)(v))


def gqa_formats(model, calibration):
    centred = Centred(model, calibration)
    exact = lambda x: x
    return {
        "gqa_fp8": plain(fp8),
        "scale of a layer": plain(tensor_fp8),
        "scale 1": plain(e4m3),
        "scale max/448 in float32": plain(lambda x: fp8(x, largest(x) / 448)),
        "scale clips at half the max": plain(lambda x: fp8(x, power_of_two(x, 0.5))),
        "only K": plain(fp8, exact),
        "only V": plain(exact, fp8),
        "no sink row": centred(fp8),
        "no centring": plain(sink(fp8)),
        "gqa_fp8c": centred(sink(lambda x: best_of(eighths(x), x, squares))),
        "fp8c, scale a power of two": centred(sink(fp8)),
        "fp8c, scale max/448": centred(sink(lambda x: fp8(x, largest(x) / 448))),
        "power of two, only K": lambda i, k, v: (centred(sink(fp8))(i, k, v)[0], v),
        "power of two, only V": lambda i, k, v: (k, centred(sink(fp8))(i, k, v)[1]),
        "fp8c, eighths, largest": centred(sink(lambda x: best_of(eighths(x), x, of_largest))),
        "fp8c, eighths, smallest": centred(sink(lambda x: fp8(x, eighths(x)[0]))),
        "int8": plain(int8),
        "int8, no sink row": centred(int8),
        "int8, no centring": plain(sink(int8)),
        "int8c clips at 0.9 of the max": centred(sink(lambda x: int8(x, 0.9))),
        "gqa_int8c": centred(sink(int8)),
        "f32": plain(exact),
    }


def shared_fp8(_, latents, keys):
    scale = power_of_two(np.concatenate([latents, keys], -1))
    return fp8(latents, scale), fp8(keys, scale)


def shared_int8(_, latents, keys):
    both = int8(np.concatenate([latents, keys], -1))
    return both[:, :latents.shape[1]], both[:, latents.shape[1]:]


def latent_formats():
    return {
        "mla_fp8": plain(fp8, int8),
        "mla_fp8_656": plain(lambda x: fp8(x, largest(x) / 448), round_bf16),
        "rope e4m3": plain(fp8, fp8),
        "one scale for both, e4m3": shared_fp8,
        "one scale for both, int8": shared_int8,
        "scale of a layer, e4m3": plain(tensor_fp8, tensor_fp8),
        "scale 1, rope int8": plain(e4m3, int8),
        "scale 1, e4m3": plain(e4m3, e4m3),
        "latent scale max/448 in float32": plain(lambda x: fp8(x, largest(x) / 448), int8),
        "latent scale clips at half the max": plain(lambda x: fp8(x, power_of_two(x, 0.5)), int8),
        "only the latent": plain(fp8, lambda x: x),
        "only the rope, int8": plain(lambda x: x, int8),
        "only the rope, e4m3": plain(lambda x: x, fp8),
        "first token in two terms": plain(sink(fp8), sink(int8)),
        "latent int8, rope int8": plain(int8, int8),
        "f32": plain(lambda x: x),
    }


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class Distance:
    def __init__(self):
        self.kl, self.same, self.nll, self.reference_nll = [], [], [], []

    def add(self, reference, logits, following):
        for begin in range(0, len(reference), 128):
            p, q = (log_softmax(x[begin:begin + 128]) for x in (reference, logits))
            self.kl.extend((np.exp(p) * (p - q)).sum(-1))
            self.same.extend(p.argmax(-1) == q.argmax(-1))
            given = following[begin:begin + 128]
            rows = np.arange(len(given))
            self.nll.extend(-q[rows, given])
            self.reference_nll.extend(-p[rows, given])

    def report(self, name):
        kl = np.sort(self.kl)
        change = np.exp(np.mean(self.nll) - np.mean(self.reference_nll)) - 1
        return {"format": name, "tokens": len(self.nll), "kl_mean": kl.mean(), "kl_p99": kl[int(len(kl) * 0.99)], "kl_max": kl[-1],
                "top1": np.mean(self.same), "perplexity_change": change}


def main():
    parser = argparse.ArgumentParser()
    for name in ("sluice", "model", "file"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--calibrate")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--outlier", type=float, default=1.0, help="a pair of rope channels of latent keys so many times larger")
    parser.add_argument("--only", help="formats, separated by ';'")
    args = parser.parse_args()

    def tokens_of(file):
        out = subprocess.run([args.sluice, "tokenize", "--model", args.model, "--file", file], check=True, capture_output=True)
        return json.loads(out.stdout)

    if args.model.endswith(".gguf"):
        model = kv_models.Llama(args.model)
        formats = gqa_formats(model, tokens_of(args.calibrate)[:512])
    else:
        model = kv_models.Kimi(args.model, args.outlier)
        formats = latent_formats()
    names = args.only.split(";") if args.only else list(formats)
    distances = {name: Distance() for name in names}
    tokens = tokens_of(args.file)[:args.tokens]
    for begin in range(0, len(tokens), args.window):
        window = np.array(tokens[begin:begin + args.window])
        reference = model.logits(window, plain(round_bf16))
        for name in names:
            distances[name].add(reference, model.logits(window, formats[name]), window[1:])
    for name in names:
        print(json.dumps(distances[name].report(name)), flush=True)


if __name__ == "__main__":
    main()
