"""Two families in numpy, float32, with a seam where keys and values are stored: Llama with grouped query heads from a GGUF file, and
the Kimi K2 shape (latent attention, routed experts) from a BF16 folder. For experiments with page formats that no kernel has."""
import json
import pathlib
import struct

import numpy as np

F32 = np.float32
Q4_1, Q8_0 = 3, 8


def round_bf16(x):
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(F32)


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + F32(epsilon)) * weight


def swiglu(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def rotate_pairs(x, inverse_frequencies):
    """Channels (2i, 2i + 1) of [tokens, heads, width] turned by position; the first of all pairs come first in the result."""
    angle = np.arange(len(x), dtype=F32)[:, None, None] * inverse_frequencies
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([x[..., ::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., ::2] * sin], -1)


def softmax_rows(scores):
    scores += np.triu(np.full(scores.shape[-2:], -np.inf, F32), 1)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


class Llama:
    def __init__(self, path):
        self.keys, tensors = read_gguf(path)
        get = lambda name: self.keys["llama." + name]
        self.heads, self.kv_heads = get("attention.head_count"), get("attention.head_count_kv")
        self.epsilon = get("attention.layer_norm_rms_epsilon")
        width = get("rope.dimension_count")
        self.inverse_frequencies = (get("rope.freq_base") ** (-np.arange(0, width, 2) / width)).astype(F32)
        self.embedding, self.norm = tensors["token_embd.weight"], tensors["output_norm.weight"]
        self.layers = [{name: tensors[f"blk.{i}.{name}.weight"] for name in
                        ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")}
                       for i in range(get("block_count"))]

    def logits(self, tokens, store):
        """store(layer, keys, values [tokens, kv_heads, width]) gives what attention sees of them."""
        count = len(tokens)
        x = self.embedding[tokens]
        for index, w in enumerate(self.layers):
            h = rms_norm(x, w["attn_norm"], self.epsilon)
            q, k, v = (h @ w[name].T for name in ("attn_q", "attn_k", "attn_v"))
            q = rotate_pairs(q.reshape(count, self.heads, -1), self.inverse_frequencies)
            k = rotate_pairs(k.reshape(count, self.kv_heads, -1), self.inverse_frequencies)
            k, v = store(index, k, v.reshape(count, self.kv_heads, -1))
            out = np.empty_like(q)
            for head in range(self.heads):
                of = head * self.kv_heads // self.heads
                out[:, head] = softmax_rows(q[:, head] @ k[:, of].T * F32(q.shape[-1] ** -0.5)) @ v[:, of]
            x = x + out.reshape(count, -1) @ w["attn_output"].T
            x = x + swiglu(rms_norm(x, w["ffn_norm"], self.epsilon), w["ffn_gate"], w["ffn_up"], w["ffn_down"])
        return rms_norm(x, self.norm, self.epsilon) @ self.embedding.T


class Kimi:
    """Without YaRN and groups of experts."""

    def __init__(self, path, outlier=1.0):
        """`outlier` scales one pair of rope channels of every key and the queries by its inverse: the same model in exact arithmetic."""
        folder = pathlib.Path(path)
        self.config = json.loads((folder / "config.json").read_text())
        t = read_bf16(folder / "model.safetensors")
        width = self.config["qk_rope_head_dim"]
        self.inverse_frequencies = (self.config["rope_theta"] ** (-np.arange(0, width, 2) / width)).astype(F32)
        self.scale = np.ones(width, F32)
        self.scale[[0, width // 2]] = outlier
        self.embedding, self.norm, self.head = (t[n] for n in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"))
        self.layers = []
        for i in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{i}."
            self.layers.append({name.removeprefix(prefix): value for name, value in t.items() if name.startswith(prefix)})

    def logits(self, tokens, store):
        """store(layer, latents [tokens, rank], keys [tokens, width]) gives what attention sees of them."""
        c, count = self.config, len(tokens)
        rank, nope, heads = c["kv_lora_rank"], c["qk_nope_head_dim"], c["num_attention_heads"]
        x = self.embedding[tokens]
        for index, w in enumerate(self.layers):
            at = lambda name, w=w: w[f"self_attn.{name}.weight"]
            h = rms_norm(x, w["input_layernorm.weight"], c["rms_norm_eps"])
            q = rms_norm(h @ at("q_a_proj").T, at("q_a_layernorm"), 1e-6) @ at("q_b_proj").T
            q = q.reshape(count, heads, -1)
            rotated = rotate_pairs(q[..., nope:], self.inverse_frequencies) / self.scale
            down = h @ at("kv_a_proj_with_mqa").T
            latents = rms_norm(down[:, :rank], at("kv_a_layernorm"), 1e-6)
            keys = rotate_pairs(down[:, None, rank:], self.inverse_frequencies)[:, 0] * self.scale
            latents, keys = store(index, latents, keys)
            up = at("kv_b_proj").reshape(heads, -1, rank)
            out = np.empty((count, heads, c["v_head_dim"]), F32)
            for head in range(heads):
                scores = (q[:, head, :nope] @ up[head, :nope]) @ latents.T + rotated[:, head] @ keys.T
                out[:, head] = softmax_rows(scores * F32(q.shape[-1] ** -0.5)) @ latents @ up[head, nope:].T
            x = x + out.reshape(count, -1) @ at("o_proj").T
            h = rms_norm(x, w["post_attention_layernorm.weight"], c["rms_norm_eps"])
            x = x + (self.routed(w, h) if "mlp.gate.weight" in w else swiglu(h, *matrices(w, "mlp.")))
        return rms_norm(x, self.norm, c["rms_norm_eps"]) @ self.head.T

    def routed(self, w, h):
        c = self.config
        score = 1 / (1 + np.exp(-(h @ w["mlp.gate.weight"].T)))
        chosen = np.argsort(-(score + w["mlp.gate.e_score_correction_bias"]), 1, kind="stable")[:, :c["num_experts_per_tok"]]
        weight = np.take_along_axis(score, chosen, 1)
        weight = weight / weight.sum(1, keepdims=True) * F32(c["routed_scaling_factor"])
        out = swiglu(h, *matrices(w, "mlp.shared_experts."))
        for expert in range(c["n_routed_experts"]):
            rows, places = np.nonzero(chosen == expert)
            out[rows] += weight[rows, places][:, None] * swiglu(h[rows], *matrices(w, f"mlp.experts.{expert}."))
        return out


def matrices(w, prefix):
    return (w[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down"))


def read_bf16(path):
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:end]).items():
        if name == "__metadata__":
            continue
        raw = data[end + entry["data_offsets"][0]:end + entry["data_offsets"][1]]
        values = np.frombuffer(raw, F32) if entry["dtype"] == "F32" else (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(F32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def read_gguf(path):
    """Metadata and tensors (F32, Q4_1, Q8_0) of a file that is trusted."""
    data, at = pathlib.Path(path).read_bytes(), 8

    def take(code):
        nonlocal at
        value = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize("<" + code)
        return value[0]

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return data[at - length:at].decode(errors="replace")

    codes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner = take("I")
            return [value(inner) for _ in range(take("Q"))]
        return take(codes[kind])

    count, keys = take("Q"), {}
    for _ in range(take("Q")):
        name = text()
        keys[name] = value(take("I"))
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(count)]
    begin = -(-at // 32) * 32
    return keys, {name: decode(data, begin + offset, shape[::-1], kind) for name, shape, kind, offset in infos}


def decode(data, at, shape, kind):
    count = int(np.prod(shape))
    if kind == Q4_1:
        b = np.frombuffer(data, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), count // 32, at)
        codes = np.concatenate([b["q"] & 15, b["q"] >> 4], 1).astype(F32)
        return (codes * b["d"].astype(F32)[:, None] + b["m"].astype(F32)[:, None]).reshape(shape)
    if kind == Q8_0:
        b = np.frombuffer(data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), count // 32, at)
        return (b["q"].astype(F32) * b["d"].astype(F32)[:, None]).reshape(shape)
    if kind != 0:
        raise ValueError(f"a tensor of type {kind}")
    return np.frombuffer(data, F32, count, at).reshape(shape)
