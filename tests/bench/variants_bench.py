#!/usr/bin/env python3
"""One published layout with made-up weights on a GPU: time per token beside the bytes it reads.

usage: variants_bench.py BUILD_DIR LAYOUT [--streams 1,4,16,64] [--rows FILE]
LAYOUT is a folder of tests/bench/configs.  1,024 random tokens in, 128 out, all streams at once; per
number of streams a row: TPOT and the median gap (ms), GB that one step of so many rows reads (weights,
of experts those that are drawn, a row of the per-layer table and the KV per stream), what that takes
at the card's read roof, and how many times that the TPOT and the gap are.  Rows are also added to FILE.
Distinct experts are those that even routing draws.  Fails where the layout does not start, or where one
stream is slower than LIMITS_MS says."""

import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "testlib"), str(ROOT / "tests" / "bench")]

import serve_bench  # noqa: E402
import served  # noqa: E402

ROOF_BYTES_PER_S = 4.72e12  # streaming reads of an H200, measured
LIMITS_MS = {"gemma-4-26b-a4b": 4.5, "gemma-4-e4b": 3.5, "gemma-4-31b": 18.0}
PROMPT, OUTPUT = 1024, 128
HEAD = (f"{'layout':16} {'streams':>7} {'TPOT ms':>8} {'gap ms':>7} {'GB read':>8} {'roof ms':>8} "
        f"{'TPOT/roof':>9} {'gap/roof':>8} {'tokens/s':>8}")


def number(text):
    return int(text.replace(",", ""))


class Layout:
    """Sizes as `bezel check` tells them, and what it does not tell from config.json."""

    def __init__(self, build, name):
        self.name = name
        folder = ROOT / "tests" / "bench" / "configs" / name
        self.config = json.loads((folder / "config.json").read_text())["text_config"]
        told = subprocess.run([str(pathlib.Path(build) / "deploy" / "bezel"), "check", str(folder)],
                              capture_output=True, text=True, check=False).stdout
        self.params = number(re.search(r"([\d,]+) parameters", told)[1])
        self.sliding_bytes = number(re.search(r"sliding layers ([\d,]+) B a token", told)[1])
        self.full_bytes = number(re.search(r"full layers ([\d,]+) B a token", told)[1])

    def table_bytes(self):
        """Of the per-layer embeddings: all, and one token's row."""
        row = 2 * self.config["num_hidden_layers"] * self.config.get("hidden_size_per_layer_input", 0)
        return row * self.config["vocab_size"], row

    def expert_bytes(self):
        """Of the experts: all, and those that so many rows draw."""
        if not self.config.get("enable_moe_block"):
            return 0, lambda rows: 0.0
        experts, drawn = self.config["num_experts"], self.config["top_k_experts"]
        every = (6 * self.config["num_hidden_layers"] * experts * self.config["hidden_size"]
                 * self.config["moe_intermediate_size"])
        return every, lambda rows: every * (1 - (1 - drawn / experts) ** rows)

    def step_bytes(self, rows):
        """In the middle of the output."""
        table, row = self.table_bytes()
        experts, drawn = self.expert_bytes()
        tokens = PROMPT + OUTPUT // 2
        window = min(tokens, self.config["sliding_window"])
        kv = window * self.sliding_bytes + tokens * self.full_bytes
        return 2 * self.params - table - experts + drawn(rows) + rows * (row + kv)


def row_of(layout, figures):
    rows = figures["streams"]
    read = layout.step_bytes(rows)
    roof_ms = read / ROOF_BYTES_PER_S * 1e3
    tpot, gap = figures["tpot_mean"], figures["itl_median"]
    return (f"{layout.name:16} {rows:7} {tpot:8.2f} {gap:7.2f} {read / 1e9:8.2f} {roof_ms:8.2f} "
            f"{tpot / roof_ms:9.2f} {gap / roof_ms:8.2f} {figures['tokens_per_sec']:8.0f}")


async def measure(url, streams):
    """Figures per number of streams; the first run only warms."""
    rng = random.Random(11)
    load = argparse.Namespace(prompt=PROMPT, output=OUTPUT, vocab=200000)
    await serve_bench.measure(url, 1, load, rng)
    return [await serve_bench.measure(url, count, load, rng) for count in streams]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("layout")
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 4, 16, 64])
    parser.add_argument("--rows", help="file that the rows are added to")
    options = parser.parse_args()
    layout = Layout(options.build, options.layout)
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / layout.name
        model.mkdir()
        shutil.copy(ROOT / "tests" / "bench" / "configs" / layout.name / "config.json", model)
        with served.Served(options.build, model, "--device", "cuda:0", "--load-format", "dummy",
                           "--max-slots", str(max(options.streams))) as server:
            found = asyncio.run(measure(server.url, options.streams))
            print("\n".join(line for line in server.log().splitlines() if "capacity" in line))
    lines = [row_of(layout, figures) for figures in found]
    print("\n".join([HEAD, *lines]))
    if options.rows:
        is_new = not os.path.exists(options.rows)
        with open(options.rows, "a", encoding="utf-8") as rows:
            rows.write("\n".join(([HEAD] if is_new else []) + lines) + "\n")
    limit = LIMITS_MS.get(layout.name)
    if limit and found[0]["streams"] == 1 and found[0]["tpot_mean"] > limit:
        sys.exit(f"one stream: {found[0]['tpot_mean']:.2f} ms per token, at most {limit} are wanted")


if __name__ == "__main__":
    main()
