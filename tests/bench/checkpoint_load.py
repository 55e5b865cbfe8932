#!/usr/bin/env python3
"""Writes a checkpoint of a config's size and measures how fast the worker loads it.

usage: checkpoint_load.py BUILD_DIR [--device cuda:0] [--config FILE] [--least 3.0] [--folder DIR]
Tensors and shapes follow worker/weights.def (dense configs).  Values are random bf16 numbers near
zero, one block of them again and again: what is written is read from the page cache."""
import argparse
import json
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testlib"))
import served  # noqa: E402

SHARD_BYTES = 4 << 30
BLOCK_BYTES = 64 << 20


def rows(kind):
    """(name, when, dims) of the rows of weights.def."""
    text = (served.ROOT / "worker" / "weights.def").read_text(encoding="utf-8")
    pattern = rf'^{kind}\(\s*\w+,\s*"([^"]+)",\s*(\w+),\s*(\w+),\s*(\w+),\s*(\w+)\)'
    return [(name, when, [dim for dim in dims if dim != "NONE"])
            for name, when, *dims in re.findall(pattern, text, re.M)]


def tensors(config):
    text = config["text_config"]
    layers = text["layer_types"]
    base = {"ONE": 1, "VOCAB": text["vocab_size"], "HIDDEN": text["hidden_size"],
            "MLP": text["intermediate_size"]}
    for name, when, dims in rows("GLOBAL"):
        if when == "ALWAYS":
            yield f"model.language_model.{name}", [base[dim] for dim in dims]
    for index, kind in enumerate(layers):
        is_full = kind == "full_attention"
        head = text.get("global_head_dim", text["head_dim"]) if is_full else text["head_dim"]
        has_no_v = is_full and text.get("attention_k_eq_v", False)
        kv_heads = text["num_key_value_heads"]
        if has_no_v:
            kv_heads = text.get("num_global_key_value_heads") or kv_heads
        sizes = {**base, "HEAD": head, "Q_ROWS": text["num_attention_heads"] * head,
                 "KV_ROWS": kv_heads * head}
        for name, when, dims in rows("LAYER"):
            if when in ("ALWAYS", "OWNS_KV") or (when == "OWNS_V" and not has_no_v):
                yield (f"model.language_model.layers.{index}.{name}",
                       [sizes[dim] for dim in dims])


def bytes_of(shape):
    count = 2
    for dim in shape:
        count *= dim
    return count


def shards(wanted):
    shard, used = [], 0
    for name, shape in wanted:
        if shard and used + bytes_of(shape) > SHARD_BYTES:
            yield shard
            shard, used = [], 0
        shard.append((name, shape))
        used += bytes_of(shape)
    yield shard


def write_shard(path, shard, block):
    header, at = {}, 0
    for name, shape in shard:
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [at, at + bytes_of(shape)]}
        at += bytes_of(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while at > 0:
            at -= file.write(block[:min(at, len(block))])


def write_checkpoint(folder, config_path):
    """Returns the bytes written."""
    config = json.loads(config_path.read_text(encoding="utf-8"))
    shutil.copy(config_path, folder / "config.json")
    noise = bytearray(random.Random(3).randbytes(BLOCK_BYTES))
    noise[1::2] = bytes(byte & 0x80 | 0x3c for byte in noise[1::2])  # about 0.01 to 0.03
    parts = list(shards(tensors(config)))
    index, total = {}, 0
    for number, shard in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        write_shard(folder / name, shard, memoryview(noise))
        index.update({tensor: name for tensor, _ in shard})
        total += sum(bytes_of(shape) for _, shape in shard)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}), encoding="utf-8")
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--config", type=pathlib.Path, default=served.ROOT / "tests" / "bench" /
                        "configs" / "gemma-4-12b" / "config.json")
    parser.add_argument("--least", type=float, default=3.0)
    parser.add_argument("--folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = pathlib.Path(name)
        start = time.monotonic()
        total = write_checkpoint(folder, args.config)
        took = time.monotonic() - start
        print(f"wrote {total / 1e9:.2f} GB in {took:.1f} s, {total / 1e9 / took:.2f} GB/s",
              flush=True)
        best = 0.0
        for _ in range(2):
            with served.Served(args.build, folder, "--device", args.device) as server:
                log = server.log()
            rate = re.findall(r" weights loading .* gb_per_s=(\S+)", log)[-1]
            ready = re.findall(r" worker ready .* start_ms=(\d+)", log)[-1]
            print(f"loaded at {rate} GB/s, worker ready after {ready} ms", flush=True)
            best = max(best, float(rate))
    return 0 if best >= args.least else 1


sys.exit(main())
